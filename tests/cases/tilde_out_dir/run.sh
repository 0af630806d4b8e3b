# `~` in a quoted value means the home folder, as it does in a shell.
export HOME="$PWD/home"
mkdir -p home
python -W ignore -m parallelbench run limit=1 'suite.tasks=[waiting_line/copy]' "out_dir='~/pb_out'" >/dev/null 2>&1
ls -d './~/pb_out' home/pb_out 2>/dev/null
