// The shells differ only in how the same tables are said.
#include "options/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/nearest.h"
#include "options/fields.h"

namespace moe {
namespace {

using Takes = OptionInfo::Takes;

// Neither paths nor values hold a quote; help texts may.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string brief(const std::string& help) { return help.substr(0, help.find_first_of(";\n")); }

std::vector<std::string> names_of_flags(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const OptionInfo& flag : command.flags)
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  return names;
}

// "'moe train'|'moe bench'": every command but the first, as a pattern of bash and zsh.
std::string paths_below(const CommandInfo& root, std::string_view between) {
  std::vector<std::string> paths;
  for (const CommandInfo* command : all_commands(root))
    if (command != &root) paths.push_back(shell_quoted(command->path));
  return fmt::format("{}", fmt::join(paths, between));
}

// The patterns "path flag" of all flags for which `wanted` holds.
template <class F>
std::string flags_where(const CommandInfo& root, F&& wanted) {
  std::vector<std::string> patterns;
  for (const CommandInfo* command : all_commands(root))
    for (const OptionInfo& flag : command->flags)
      if (wanted(flag))
        for (const std::string& name : flag.names)
          patterns.push_back(shell_quoted(command->path + " " + name));
  return fmt::format("{}", fmt::join(patterns, "|"));
}

bool is_number(const OptionInfo& o) { return o.takes == Takes::number && o.values.empty(); }
bool is_text(const OptionInfo& o) { return o.takes == Takes::text && o.values.empty(); }

// Each distinct list of values with the flags that take it: rows(pattern, values).
template <class F>
void each_choice(const CommandInfo& root, F&& rows) {
  std::vector<std::vector<std::string>> lists;
  for (const CommandInfo* command : all_commands(root))
    for (const OptionInfo& flag : command->flags)
      if (!flag.values.empty() && std::find(lists.begin(), lists.end(), flag.values) == lists.end())
        lists.push_back(flag.values);
  for (const auto& values : lists)
    rows(flags_where(root, [&](const OptionInfo& o) { return o.values == values; }),
         fmt::format("{}", fmt::join(values, " ")));
}

std::string words_of_verbs(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const CommandInfo& verb : command.verbs) names.push_back(verb.name);
  return fmt::format("{}", fmt::join(names, " "));
}

// What may stand where no flag does: verbs, or the values of the positional.
std::string plain_words(const CommandInfo& command) {
  if (!command.verbs.empty()) return words_of_verbs(command);
  return command.positionals.empty()
             ? ""
             : fmt::format("{}", fmt::join(command.positionals[0].values, " "));
}

std::string bash(const CommandInfo& root) {
  std::string choices, commands;
  each_choice(root, [&](const std::string& pattern, const std::string& values) {
    choices +=
        fmt::format("    {})\n      COMPREPLY=($(compgen -W {} -- \"$cur\"))\n      return ;;\n",
                    pattern, shell_quoted(values));
  });
  for (const CommandInfo* command : all_commands(root))
    commands +=
        fmt::format("    {}) flags={} words={} ;;\n", shell_quoted(command->path),
                    shell_quoted(fmt::format("{}", fmt::join(names_of_flags(*command), " "))),
                    shell_quoted(plain_words(*command)));
  return fmt::format(R"(# bash completion of moe, made by: moe completion bash
_moe() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path=moe flags= words= i
  # bash cuts --flag=value into three words
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${{COMP_WORDS[i]}}" in
      {}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  COMPREPLY=()
  case "$path $prev" in
{}    {})
      return ;;
    {})
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
      return ;;
  esac
  case $path in
{}  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  elif [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
  fi
}}
complete -F _moe moe
)",
                     paths_below(root, "|"), choices, flags_where(root, is_number),
                     flags_where(root, is_text), commands);
}

// name:description, as zsh's _describe takes it.
std::string described(const std::string& name, const std::string& help) {
  return shell_quoted(name + ":" + brief(help));
}

std::string zsh(const CommandInfo& root) {
  std::string choices, commands;
  each_choice(root, [&](const std::string& pattern, const std::string& values) {
    choices += fmt::format("    ({})\n      compadd -- {}\n      return ;;\n", pattern, values);
  });
  for (const CommandInfo* command : all_commands(root)) {
    commands += fmt::format("    ({})\n      flags=(\n", shell_quoted(command->path));
    for (const OptionInfo& flag : command->flags)
      for (const std::string& name : flag.names)
        commands += fmt::format("        {}\n", described(name, flag.help));
    commands += "      )\n";
    if (!command->verbs.empty()) {
      commands += "      verbs=(\n";
      for (const CommandInfo& verb : command->verbs)
        commands += fmt::format("        {}\n", described(verb.name, verb.summary));
      commands += "      )\n";
    } else if (const std::string words = plain_words(*command); !words.empty()) {
      commands += fmt::format("      plain=({})\n", words);
    }
    commands += "      ;;\n";
  }
  return fmt::format(R"(#compdef moe
# zsh completion of moe, made by: moe completion zsh
_moe() {{
  local node=moe prev=${{words[CURRENT-1]}} i
  local -a flags verbs plain
  if [[ ${{words[CURRENT]}} == --*=* ]]; then
    prev=${{words[CURRENT]%%=*}}
    compset -P '*='
  fi
  for ((i = 2; i < CURRENT; i++)); do
    case "$node ${{words[i]}}" in
      ({}) node="$node ${{words[i]}}" ;;
    esac
  done
  case "$node $prev" in
{}    ({})
      return 1 ;;
    ({})
      _files
      return ;;
  esac
  case $node in
{}  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    _describe -o flag flags
  elif (( $#verbs )); then
    _describe verb verbs
  elif (( $#plain )); then
    compadd -a plain
  else
    _files
  fi
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _moe "$@"; else compdef _moe moe; fi
)",
                     paths_below(root, "|"), choices, flags_where(root, is_number),
                     flags_where(root, is_text), commands);
}

// fish's single quotes know \' and \\ only.
std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

std::string fish(const CommandInfo& root) {
  std::string lines;
  for (const CommandInfo* command : all_commands(root)) {
    const std::string at = fmt::format("complete -c moe -n '__moe_at {}'", command->path);
    for (const CommandInfo& verb : command->verbs)
      lines += fmt::format("{} -f -a {} -d {}\n", at, verb.name, fish_quoted(brief(verb.summary)));
    if (const std::string words = plain_words(*command); command->verbs.empty() && !words.empty())
      lines += fmt::format("{} -f -a '{}'\n", at, words);
    for (const OptionInfo& flag : command->flags) {
      lines += at;
      for (const std::string& name : flag.names)
        lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (!flag.values.empty()) lines += fmt::format(" -x -a '{}'", fmt::join(flag.values, " "));
      else if (flag.takes == Takes::number) lines += " -x";
      else if (flag.takes == Takes::text) lines += " -r -F";
      lines += fmt::format(" -d {}\n", fish_quoted(brief(flag.help)));
    }
  }
  return fmt::format(R"(# fish completion of moe, made by: moe completion fish
function __moe_at
  set -l node moe
  set -l before (commandline -opc)
  for word in $before[2..-1]
    switch "$node $word"
      case {}
        set node "$node $word"
    end
  end
  test "$node" = "$argv"
end
{})",
                     paths_below(root, " "), lines);
}

struct Shell {
  std::string_view name;
  std::string (*script)(const CommandInfo&);
};
const std::vector<Shell>& shells() {
  static const std::vector<Shell> table = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
  return table;
}

}  // namespace

const std::vector<std::string>& completed_shells() {
  static const std::vector<std::string> names = names_of(shells());
  return names;
}

std::string completion_script(const CommandInfo& root, const std::string& shell) {
  for (const Shell& row : shells())
    if (row.name == shell) return row.script(root);
  fail_usage("completion is there for {}, not for '{}'{}", listed(completed_shells()), shell,
             suggestion(shell, completed_shells()));
}

}  // namespace moe
