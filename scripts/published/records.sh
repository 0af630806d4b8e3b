# Sourced by the scripts of pages: their records are published with them.

begin() { # RUNS_DIR PAGE_DIR: starts from the runs that are published with the page, where there are none yet
  [ -d "$1" ] || [ ! -f "$2/runs.tar.xz" ] || { mkdir -p "$1" && tar xJf "$2/runs.tar.xz" -C "$1"; }
}

page() { # RUNS_DIR PAGE_DIR: the page of these runs, and the runs next to it
  python -m parallelbench report "$1" out_dir="$2"
  [ ! -d "$1" ] ||
    tar c -C "$1" --exclude '*.tmp' --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner . | xz -9e > "$2/runs.tar.xz"
}
