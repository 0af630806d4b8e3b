# A template that refuses a chat, or cannot be rendered, ends a run in one sentence, with exit code 2.
for name in raises syntax undefined; do
  python -W ignore -m parallelbench run +model.chat_template=$name.jinja limit=1 'suite.tasks=[waiting_line/copy]' \
    out_dir=out >log 2>&1
  printf '%s %s %s; ' $name $? "$(grep -c 'error: the chat template of model' log)"
done
