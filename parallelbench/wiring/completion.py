"""The command `completion`: what a shell needs to complete our commands, choices and settings, without asking us."""

import shlex
from collections.abc import Sequence

import yaml

from parallelbench.records.facts import flatten
from parallelbench.tasks import named_tasks
from parallelbench.wiring.catalogue import CONF, LISTED, options, settings
from parallelbench.wiring.menu import COMMANDS, NAMES
from parallelbench.wiring.new import GROUP

BASH = """_parallelbench() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" words=() current before
  read -ra words <<< "$line"
  [[ "$line" == *" " ]] && words+=("")
  current="${{words[-1]}}" before="${{words[1]}}"
  [[ ${{#words[@]}} -le 2 ]] && before=""
  [[ "$before" == analyze && ${{#words[@]}} -gt 3 ]] && before="analyze ${{words[2]}}"
  [[ "$before" == show && ${{#words[@]}} -gt 3 ]] && before="show ${{words[2]}}"
  local choices=""
  case "$before" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$choices" -- "$current"))
  [[ ${{#COMPREPLY[@]}} -eq 0 && "$before" != "" ]] && COMPREPLY=($(compgen -f -- "$current"))
  [[ ${{#COMPREPLY[@]}} -eq 1 && "${{COMPREPLY[0]}}" == *= ]] && compopt -o nospace 2> /dev/null
  if [[ "$current" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
    COMPREPLY=("${{COMPREPLY[@]#"${{current%"${{current##*=}}"}}"}}")
  fi
}}
complete -F _parallelbench parallelbench
"""
ZSH = """(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
_parallelbench() {{
  local choices="" before="${{words[2]}}"
  (( CURRENT == 2 )) && before=""
  [[ "$before" == (analyze|show) ]] && (( CURRENT > 3 )) && before+=" ${{words[3]}}"
  case "$before" in
{cases}
  esac
  compadd -S "" -- ${{(M)${{=choices}}:#*=}}
  compadd -- ${{${{=choices}}:#*=}}
  (( compstate[nmatches] )) || [[ -z "$before" ]] || _files
}}
compdef _parallelbench parallelbench
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def main(arguments: Sequence[str]) -> str:
    if len(arguments) != 1 or arguments[0] not in SCRIPTS:
        raise ValueError(f"completion takes the name of a shell, {' or '.join(SCRIPTS)}")
    cases = "\n".join(f"    {shlex.quote(name)}) choices={shlex.quote(' '.join(w))} ;;" for name, w in _words().items())
    return SCRIPTS[arguments[0]].format(cases=cases)


def _words() -> dict[str, list[str]]:
    """What may follow, by the words before; nothing before is the command itself."""
    groups = {group: list(options(group)) for group in LISTED}
    run = [f"{group}={name}" for group, names in groups.items() for name in names]
    run += [f"{key}=" for key in (*settings(), *_dotted())]
    after = {name: [f"{key}=" for key in command.options] for name, command in COMMANDS.items()}
    after |= {"": [*NAMES, "--help", "--version"], "run": [*run, "-m", "--cfg", "--help"]}
    after |= {"list": [*LISTED, "tasks", "settings"], "show": ["task", *LISTED], "completion": [*SCRIPTS]}
    after["new"] += GROUP
    after["analyze"] = [name.split()[1] for name in COMMANDS if name.startswith("analyze ")]
    after |= {f"show {group}": names for group, names in groups.items()}
    return after | {"show task": [*named_tasks()]}


def _dotted() -> list[str]:
    """The settings of all parts, each once."""
    found = dict[str, None]()
    for group in LISTED:
        for name in options(group) if group != "experiment" else ():
            content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
            keys = flatten({key: value for key, value in (content or {}).items() if key != "defaults"})
            found |= {f"{group}.{key}": None for key in keys if key and not key.endswith("_target_")}
    return list(found)
