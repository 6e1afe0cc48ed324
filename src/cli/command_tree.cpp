#include "cli/command_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <sstream>

namespace moe::cli {
namespace {

// CLI11's options carry no data of a user's, but validators, which have names.
constexpr char kValues[] = "values:";

std::vector<std::string> values_of(CLI::Option& option) {
  if (option.get_type_name() == "BOOLEAN") return {"true", "false"};
  std::vector<std::string> values;
  try {
    for (int i = 0;; ++i) {
      const std::string& name = option.get_validator(i)->get_name();
      if (!name.starts_with(kValues)) continue;
      std::istringstream words(name.substr(sizeof(kValues) - 1));
      for (std::string word; words >> word;) values.push_back(word);
    }
  } catch (const CLI::OptionNotFound&) {  // there is no other way to learn how many there are
  }
  return values;
}

OptionInfo describe(CLI::Option& option) {
  OptionInfo info;
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  if (info.names.empty()) info.names.push_back(option.get_name(true));
  info.many = option.get_items_expected_max() > 1;
  info.required = option.get_required();
  info.group = option.get_group();
  info.help = option.get_description();
  if (option.get_items_expected_max() == 0) return info;
  info.type = option.get_type_name();
  info.takes = info.type == "INT" || info.type == "UINT" || info.type == "FLOAT"
                   ? OptionInfo::Takes::number
                   : OptionInfo::Takes::text;
  info.initial = option.get_default_str();
  info.values = values_of(option);
  return info;
}

CommandInfo read(CLI::App& app, const std::string& path) {
  CommandInfo info{path, app.get_name(), app.get_description(), {}, {}, {}};
  for (CLI::Option* option :
       app.get_options([](CLI::Option* o) { return !o->get_group().empty(); }))
    (option->get_positional() ? info.positionals : info.flags).push_back(describe(*option));
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; }))
    info.verbs.push_back(read(*verb, path + " " + verb->get_name()));
  return info;
}

// f(flag) for each flag of each command.
template <class F>
void each_flag(CommandInfo& command, F&& f) {
  for (OptionInfo& flag : command.flags) f(flag);
  for (CommandInfo& verb : command.verbs) each_flag(verb, f);
}

}  // namespace

CommandInfo describe(CLI::App& app, const std::string& path) {
  CommandInfo root = read(app, path);
  std::map<std::string, std::vector<std::string>> known;
  each_flag(root, [&](const OptionInfo& flag) {
    if (!flag.values.empty()) known.emplace(flag.names.back(), flag.values);
  });
  each_flag(root, [&](OptionInfo& flag) {
    const auto same = known.find(flag.names.back());
    if (flag.values.empty() && flag.takes == OptionInfo::Takes::text && same != known.end())
      flag.values = same->second;
  });
  return root;
}

CLI::Option* takes(CLI::Option* option, const std::vector<std::string>& values) {
  return option->check(CLI::Validator([](std::string&) { return std::string(); }, "",
                                      fmt::format("{}{}", kValues, fmt::join(values, " "))));
}

}  // namespace moe::cli
