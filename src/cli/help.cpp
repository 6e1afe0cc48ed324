// The command as a whole: its verbs on one screen, what --version says, and what tells of them:
// `moe help`, `moe man`, `moe completion`.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/command_tree.h"
#include "cli/elsewhere.h"
#include "cli/examples.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/nearest.h"
#include "ops/ops.h"
#include "options/completion.h"
#include "options/manual.h"

namespace moe::cli {
namespace {

// The first line alone is what the manual page has under NAME.
constexpr const char* kWhatItIs =
    "Train, look inside and run Mixture-of-Experts language models on the CPU, and on a GPU.\n"
    "Your own, made from any text in minutes, or other people's.";

constexpr const char* kFirstSteps =
    R"(First steps:
  moe train --preset tiny --data FILE --out DIR     a small model from a text, in some minutes
  moe generate DIR -p "Once upon a time"            let it continue one
  moe get smollm2 && moe chat smollm2               talk with a small ready-made one

A MODEL is a folder as Hugging Face lays it out, a .gguf file, or a name that `moe get` lists:
also OWNER/NAME, or OWNER/NAME:Q4_K_M, of what is in Hugging Face's cache already.
`moe help VERB` tells the options of a verb, `moe man | man -l -` all of it.)";

std::string version() {
  const std::string isa = ops::isa_name();  // Highway's name, which calls AVX-512 AVX3
  return fmt::format(
      "moe {}\ninstructions: {}\nbf16 products: {}\nsame bits: {}", MOE_VERSION,
      isa.starts_with("AVX3") ? "AVX-512 (" + isa + ")" : isa,
      ops::has_bf16_products() ? "computed in bf16 by this processor"
      : isa == "NEON"          ? "computed in f32; what an ARM processor has for bf16 is not used"
                               : "computed in f32, as this processor multiplies no bf16",
      !ops::products_keep_row_bits(DType::f32)
          ? "a token's numbers in another batch agree to 1e-5, not in every bit"
      : ops::products_keep_row_bits(DType::bf16)
          ? "a token gets the same numbers alone, in a batch and on any number of threads"
          : "in f32 a token gets the same numbers alone, in a batch and on any number of threads; "
            "in bf16 and with quantised weights, multiplied in AMX tiles here, they agree to "
            "rounding (MOE_MAX_ISA=avx512: the same)");
}

std::vector<std::string> names_below(CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  return names;
}

// The verb that is called so below `at`, which is called by `path`.
CLI::App* verb_below(CLI::App& at, const std::string& path, const std::string& name) {
  const std::vector<std::string> names = names_below(at);
  if (std::find(names.begin(), names.end(), name) != names.end()) return at.get_subcommand(name);
  if (const std::string_view ours = verb_here(name); !ours.empty())
    fail_usage("{} has no verb '{}'; what it does is {}", path, name, ours);
  if (std::error_code ignored; name.find('/') != name.npos || name.ends_with(".gguf") ||
                               std::filesystem::exists(name, ignored))
    fail_usage("{} is no verb; where it is a model, one comes before it, as in moe chat {}",
               printable(name), printable(name));
  const std::string near = nearest(name, names)
                               ? suggestion(name, names)
                               : fmt::format("; {} --help lists what it has", path);
  fail_usage("{} has no verb '{}'{}", path, printable(name), near);
}

}  // namespace

Command make_command() {
  Command command{std::make_unique<CLI::App>(kWhatItIs, "moe"), {}};
  CLI::App& app = *command.app;
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.set_help_flag("-h,--help", "show this help");  // which the verbs take over
  app.require_subcommand(1);
  for (const Verb& verb : verbs()) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary)->group(verb.group);
    command.actions.emplace_back(sub, verb.add(*sub));
    if (const std::string_view examples = examples_of(verb.name); !examples.empty())
      sub->footer(fmt::format("Examples:\n{}{}{}", examples,
                              sub->get_footer().empty() ? "" : "\n\n", sub->get_footer()));
  }
  app.set_help_flag("-h,--help", "show this help, or VERB's");
  app.set_version_flag("--version", version, "the version, and what this machine computes with");
  app.footer(kFirstSteps);  // last, as what is added takes it over
  const auto narrow = std::make_shared<CLI::Formatter>(
      *std::static_pointer_cast<CLI::Formatter>(app.get_formatter()));
  narrow->column_width(15);
  app.formatter(narrow);
  return command;
}

namespace {

// Refuses what would be taken apart, up to "--".
void check_words(const CLI::App& verb, const char* const* word, const char* const* end) {
  std::vector<std::string> known;
  for (const CLI::Option* option : verb.get_options()) known.push_back(option->get_name());
  for (; word < end && std::string_view(*word) != "--"; ++word)
    if (is_word_elsewhere(*word))
      fail_usage("'{}' has no meaning here{}; see moe {} --help", *word,
                 suggested_flag(*word, known), verb.get_name());
}

}  // namespace

void check_verb(CLI::App& app, int argc, const char* const* argv) {
  const auto* const end = argv + argc;
  const auto* const word =
      std::find_if(argv + 1, end, [](const char* text) { return text[0] != '-'; });
  if (word < end) check_words(*verb_below(app, "moe", *word), word + 1, end);
  else if (argc == 1)
    fail_usage(
        "what shall be done? moe is followed by a verb, as in moe train; moe --help lists them");
}

Action add_help(CLI::App& app) {
  struct Flags {
    std::vector<std::string> words;
    Given given;
  };
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("VERB", f->words, "the verb; without one, all of them. As in: moe help train")
      .positional()
      .values(names_of(verbs()));
  add_flags(app, std::move(list), f->given);
  return [f] {
    const Command command = make_command();
    CLI::App* at = command.app.get();
    std::string above, path = "moe";
    for (const std::string& word : f->words) {
      at = verb_below(*at, path, word);
      above = path;
      path += " " + word;
    }
    print_help(at->help(above));
    return 0;
  };
}

Action add_man(CLI::App& app) {
  struct Flags {
    std::string verb;
    Given given;
  };
  auto f = std::make_shared<Flags>();
  const std::vector<std::string> names = names_of(verbs());
  FieldList list;
  list.add("VERB", f->verb,
           "the page of one verb; without it that of the whole command. As in: moe man train | man "
           "-l -")
      .positional()
      .values(names);
  add_flags(app, std::move(list), f->given);
  return [f, names, &app] {
    const CommandInfo root = describe(*app.get_parent(), "moe");
    const auto verb = std::find_if(root.verbs.begin(), root.verbs.end(),
                                   [&](const CommandInfo& v) { return v.name == f->verb; });
    const bool whole = f->verb.empty();
    if (!whole && verb == root.verbs.end())
      fail_usage("moe has no verb '{}'{}", f->verb, suggestion(f->verb, names));
    fmt::print("{}", manual_page(whole ? root : *verb, whole, MOE_VERSION));
    if (isatty(STDOUT_FILENO) != 0)
      tell("note: man makes a page of this: moe man{}{} | man -l -\n", whole ? "" : " ", f->verb);
    return 0;
  };
}

Action add_completion(CLI::App& app) {
  struct Flags {
    std::string shell;
    Given given;
  };
  auto f = std::make_shared<Flags>();
  const std::vector<std::string>& names = completed_shells();
  FieldList list;
  list.add("SHELL", f->shell,
           fmt::format("{}. As in: source <(moe completion bash)", listed(names)))
      .positional()
      .required()
      .values(names);
  add_flags(app, std::move(list), f->given);
  return [f, &app] {
    fmt::print("{}", completion_script(describe(*app.get_parent(), "moe"), f->shell));
    return 0;
  };
}

}  // namespace moe::cli
