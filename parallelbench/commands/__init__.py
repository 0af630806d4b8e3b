"""The commands that train, each over its file of conf/: conf/train.yaml for `train`."""
