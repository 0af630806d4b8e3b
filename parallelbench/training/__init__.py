"""Training data: the benchmark's own generators, rows of files and data sets, and a model's own decodes; and the
commands that train, each over its file of conf/: conf/train.yaml for `train`."""
