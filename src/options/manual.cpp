#include "options/manual.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace moe {
namespace {

// Plain text in roff: hyphens that are typed stay hyphens, and no line is taken for a request.
std::string roff(const std::string& text) {
  std::string out;
  bool fresh = true;  // at the beginning of a line
  for (char c : text) {
    if (fresh && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else if (c == '^') out += "\\(ha";
    else if (c == '~') out += "\\(ti";
    else if (c == '\'') out += "\\(aq";
    else if (c == '`') out += "\\(ga";
    else if (c == '"') out += "\\(dq";
    else out += c;
    fresh = c == '\n';
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

// --help says phrases; a paragraph is made of sentences, and the line under NAME is a phrase again.
std::string sentence(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text.ends_with('.') ? text : text + ".";
}
std::string phrase(std::string text) {
  text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text.ends_with('.') ? text.substr(0, text.size() - 1) : text;
}

std::string option_text(const OptionInfo& o) {
  std::string text = roff(o.help);
  if (!o.initial.empty()) text += fmt::format(" (default: {})", roff(o.initial));
  return text;
}

std::string one_option(const OptionInfo& o, bool positional) {
  std::vector<std::string> names;
  for (const std::string& name : o.names) names.push_back(positional ? italic(name) : bold(name));
  std::string head = fmt::format("{}", fmt::join(names, ", "));
  if (!positional && !o.type.empty())
    head += fmt::format(" {}{}", italic(o.type), o.many ? " ..." : "");
  return fmt::format(".TP\n{}\n{}\n", head, option_text(o));
}

// Every verb has --help, so only the command itself tells it. Groups are sections on a verb's own
// page and lines within the whole command's.
std::string options_of(const CommandInfo& command, bool own_page) {
  std::string text;
  for (const OptionInfo& o : command.positionals) text += one_option(o, true);
  std::vector<std::string> groups;
  for (const OptionInfo& o : command.flags)
    if (std::find(groups.begin(), groups.end(), o.group) == groups.end()) groups.push_back(o.group);
  for (const std::string& group : groups) {
    if (groups.size() > 1)
      text += own_page ? fmt::format(".SS {}\n", roff(group))
                       : fmt::format(".PP\n{}:\n", italic(group));
    for (const OptionInfo& o : command.flags)
      if (o.group == group &&
          (command.path.find(' ') == std::string::npos || o.names.back() != "--help"))
        text += one_option(o, false);
  }
  return text;
}

std::string synopsis(const CommandInfo& command) {
  std::string line = bold(command.path);
  for (const OptionInfo& o : command.positionals)
    line += o.required ? fmt::format(" {}", italic(o.names[0]))
                       : fmt::format(" [{}]", italic(o.names[0]));
  for (const OptionInfo& o : command.flags)
    if (o.required) line += fmt::format(" {} {}", bold(o.names.back()), italic(o.type));
  if (!command.verbs.empty() && command.positionals.empty())
    line += fmt::format(" {}", italic("VERB"));
  return line + " [" + italic("OPTION") + "]...\n";
}

std::string verb_section(const CommandInfo& verb) {
  std::string text;  // a command that is only a way to others has nothing of its own to tell
  if (verb.verbs.empty() || !verb.positionals.empty())
    text = fmt::format(".SS {}\n{}.br\n{}\n{}", roff(verb.path), synopsis(verb),
                       roff(sentence(verb.summary)), options_of(verb, false));
  for (const CommandInfo& below : verb.verbs) text += verb_section(below);
  return text;
}

constexpr std::string_view kStatus = R"(.SH EXIT STATUS
.TP
0
done
.TP
1
failed; one line on standard error says what, where and what to do
.TP
2
wrong usage
.TP
130
interrupted; what was done of a run is saved
)";

}  // namespace

std::string manual_page(const CommandInfo& command, bool whole, std::string_view version) {
  std::string name = command.path;
  std::replace(name.begin(), name.end(), ' ', '-');
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  // The first line of the command's description says what it is; the second who for.
  const std::string summary = command.summary.substr(0, command.summary.find('\n'));
  std::string page = fmt::format(
      ".TH {} 1 \"\" \"moe {}\" \"moe.cpp manual\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}",
      roff(title), version, roff(name), roff(phrase(summary)), synopsis(command));
  for (const CommandInfo& below : command.verbs)
    if (!whole) page += ".br\n" + synopsis(below);
  page += fmt::format(".SH DESCRIPTION\n{}\n", roff(sentence(command.summary)));
  if (whole)
    page +=
        "A \\fIMODEL\\fR is a folder as Hugging Face lays it out, a .gguf file, OWNER/NAME in "
        "Hugging Face's cache (OWNER/NAME:TYPE for one of its .gguf files), or a name that "
        "\\fBmoe get\\fR lists; what is there under a name comes first.\n"
        "Figures go to standard output, with \\fB\\-\\-json\\fR as JSON; logs and progress go to "
        "standard error.\n";
  if (!whole) {
    if (command.verbs.empty() || !command.positionals.empty())
      page += ".SH OPTIONS\n" + options_of(command, true);
    if (!command.verbs.empty()) page += ".SH VERBS\n";
    for (const CommandInfo& below : command.verbs) page += verb_section(below);
  } else {
    page += ".SH VERBS\n";
    for (const CommandInfo& verb : command.verbs)
      page += fmt::format(".TP\n{}\n{}\n", bold(verb.name), roff(verb.summary));
    page += ".SH OPTIONS\n" + options_of(command, true) + ".SH OPTIONS OF EACH VERB\n";
    for (const CommandInfo& verb : command.verbs) page += verb_section(verb);
  }
  return page + std::string(kStatus);
}

}  // namespace moe
