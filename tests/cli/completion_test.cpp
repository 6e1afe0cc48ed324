// Completion and manual pages say what the verbs have: bash is asked as a user would ask it, and
// every page tells every flag.
#include "options/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "cli/command_tree.h"
#include "cli/verbs.h"
#include "options/manual.h"
#include "support/command.h"

namespace moe::cli::completion_test {
namespace {

using namespace moe::test;

// What bash offers after `line`, its words separated by spaces; the last one, perhaps empty, is
// under the cursor.
std::vector<std::string> offered(const std::string& line, const std::string& in = ".") {
  const TempFolder folder;
  put(folder / "ask.sh", moe_command({"completion", "bash"}).out + R"(
cd "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_moe
printf '%s\n' "${COMPREPLY[@]}"
)");
  std::string command = "bash " + (folder / "ask.sh") + " " + in;
  std::istringstream words(line + (line.ends_with(' ') ? " ''" : ""));
  for (std::string word; words >> word;) command += " " + word;
  FILE* out = popen(command.c_str(), "r");
  std::string text;
  for (int c = 0; (c = std::fgetc(out)) != EOF;) text += static_cast<char>(c);
  EXPECT_EQ(pclose(out), 0);
  std::vector<std::string> replies;
  std::istringstream lines(text);
  for (std::string reply; std::getline(lines, reply);)
    if (!reply.empty()) replies.push_back(reply);
  return replies;
}

using Words = std::vector<std::string>;
bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(Completion, BashKnowsVerbsFlagsAndValues) {
  EXPECT_EQ(offered("moe tr"), Words{"train"});
  EXPECT_TRUE(has(offered("moe "), "completion"));
  EXPECT_EQ(offered("moe train --sample-p"), Words{"--sample-prompt"});
  EXPECT_EQ(offered("moe train --recipe deepseek-v"),
            (Words{"deepseek-v2", "deepseek-v3", "deepseek-v4"}));
  EXPECT_EQ(offered("moe train --recipe = olm"), Words{"olmoe"}) << "--recipe=olm, as bash cuts it";
  EXPECT_EQ(offered("moe train --preset nano"), Words{"nanomoe"});
  EXPECT_EQ(offered("moe train --steps "), Words{}) << "a number";
  EXPECT_EQ(offered("moe train --schedule c"), (Words{"cosine", "constant"}));
  EXPECT_EQ(offered("moe train --tied t"), Words{"true"});
  EXPECT_EQ(offered("moe generate --dtype b"), Words{"bf16"}) << "as in train";
  EXPECT_EQ(offered("moe generate --routing th"), Words{"threshold"});
  EXPECT_EQ(offered("moe recipes mix"), Words{"mixtral"});
  EXPECT_EQ(offered("moe completion f"), Words{"fish"});
  EXPECT_EQ(offered("moe bench "), (Words{"peak", "ops", "train", "layer", "network"}));
  EXPECT_EQ(offered("moe bench train --warmup-s"), Words{"--warmup-steps"});
  EXPECT_EQ(offered("moe man tr"), Words{"train"});
}

TEST(Completion, BashOffersFilesWhereNothingElseIsKnown) {
  const TempFolder folder;
  put(folder / "some text.txt", "");
  for (const char* line :
       {"moe train --data some", "moe generate some", "moe train --data other some"})
    EXPECT_EQ(offered(line, folder.path()), Words{"some text.txt"}) << line;
}

TEST(Completion, OfferedValuesAreAccepted) {
  const Command root = make_command();
  int checked = 0;
  for (CLI::App* app : {root.app->get_subcommand("train"), root.app->get_subcommand("route")})
    for (const OptionInfo& flag : describe(*app, "moe").flags)
      for (const std::string& value : flag.values) {
        CLI::Option* option = app->get_option(flag.names.back());
        option->clear();
        option->add_result(value);
        EXPECT_NO_THROW(option->run_callback()) << flag.names.back() << " " << value;
        ++checked;
      }
  EXPECT_GT(checked, 40);
}

TEST(Completion, EveryShellHasEveryFlag) {
  const Command root = make_command();
  const CommandInfo tree = describe(*root.app, "moe");
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(tree, shell);
    for (const CommandInfo* command : all_commands(tree))
      for (const OptionInfo& flag : command->flags) {
        const std::string name = flag.names.back();
        const std::string wanted =
            std::string(shell) == "fish" ? "'__moe_at " + command->path + "'" : name;
        EXPECT_NE(script.find(wanted), std::string::npos) << shell << " " << name;
        if (std::string(shell) == "fish") {
          EXPECT_NE(script.find(" -l " + name.substr(2)), std::string::npos) << name;
        }
      }
  }
  EXPECT_FAILS(completion_script(tree, "bsh"), "did you mean \"bash\"?");
  expect_refused({"completion", "tcsh"}, 2, {"'tcsh'", "bash, zsh, fish"});
}

TEST(Manual, TellsEveryFlagOfEveryVerb) {
  const Command root = make_command();
  const CommandInfo tree = describe(*root.app, "moe");
  const auto in_roff = [](const std::string& name) {
    std::string out;
    for (char c : name) out += c == '-' ? std::string("\\-") : std::string(1, c);
    return out;
  };
  const std::string whole = manual_page(tree, true, "1.2.3");
  for (const CommandInfo* command : all_commands(tree)) {
    EXPECT_NE(whole.find(command->path), std::string::npos) << command->path;
    for (const OptionInfo& flag : command->flags)
      if (flag.names.back() != "--help") {
        EXPECT_NE(whole.find("\\fB" + in_roff(flag.names.back()) + "\\fR"), std::string::npos)
            << command->path << " " << flag.names.back();
      }
  }
  for (const Verb& verb : verbs()) {
    const CommandResult page = moe_command({"man", verb.name});
    EXPECT_EQ(page.code, 0) << page.err;
    EXPECT_TRUE(page.out.starts_with(".TH MOE")) << verb.name;
  }
  EXPECT_EQ(moe_command({"man"}).out.substr(0, 7), ".TH MOE");
  expect_refused({"man", "trian"}, 2, {"no verb 'trian'", "train"});
}

TEST(Manual, NoLineOfTextIsTakenForARequest) {
  CommandInfo odd{"moe odd", "odd", ".hidden\n'quoted' \\back", {}, {}, {}};
  const std::string page = manual_page(odd, false, "1.2.3");
  EXPECT_NE(page.find("\\&.hidden"), std::string::npos);
  EXPECT_NE(page.find("\\&\\(aqquoted\\(aq \\eback"), std::string::npos) << page;
}

}  // namespace
}  // namespace moe::cli::completion_test
