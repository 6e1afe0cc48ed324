// `moe inspect MODEL --text`: the tables, the JSON and the page of a model made here, and what is
// refused.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::inspect_text_test {
namespace {

// A model trained for two steps, its weights before that, and a dense one.
class InspectText : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    const std::string text = repeated_text(50);
    put(*made_ / "texts/one.txt", text);
    put(*made_ / "texts/two.txt", "où étaient les élèves ? " + text.substr(0, 100));
    ASSERT_EQ(
        train("m", {"--recipe", "olmoe", "--experts", "4", "--top-k", "2", "--save-every", "2"}),
        0);
    ASSERT_EQ(train("dense", {"--recipe", "dense"}), 0);
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }
  static int train(const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = command_line(
        "train --width 16 --heads 2 --steps 2 --layers 2 --expert-width 16 --context 16 --batch 2",
        {"--data", *made_ / "texts/one.txt", "--out", *made_ / out});
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult r = moe_command(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code;
  }
  std::string model() const { return *made_ / "m"; }
  std::string texts() const { return *made_ / "texts"; }

  static TempFolder* made_;
  TempFolder folder_;
};
TempFolder* InspectText::made_ = nullptr;

TEST_F(InspectText, JsonAndPage) {
  const std::string page = folder_ / "report.html";
  const CommandResult r = moe_command({"inspect", model(), "--text", texts(), "--against",
                                       model() + "/checkpoint-0", "--html", page, "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json json = parse_json(r.out, "reply");
  const Json& routing = json.at("routing");
  EXPECT_EQ(routing.at("routing"), "dropless");
  EXPECT_EQ(routing.at("domains").at(0).at("name"), "one");
  EXPECT_EQ(routing.at("moe_layers").size(), 2u);
  EXPECT_GT(routing.at("moe_layers").at(0).at("saturation").get<double>(), 0.3);
  EXPECT_EQ(routing.at("samples").size(), 2u);
  EXPECT_EQ(json.at("history").at("points").size(), 2u);
  EXPECT_TRUE(json.contains("parameters"));  // what inspect says of every model
  EXPECT_NE(slurp(page).find("</html>"), std::string::npos);
}

TEST_F(InspectText, Pictures) {
  const std::string folder = folder_ / "new/pictures";
  const CommandResult r =
      moe_command({"inspect", model(), "--text", texts(), "--pictures", folder});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("the pictures are in " + folder), std::string::npos);
  for (const char* name :
       {"loss.svg", "load-over-time.svg", "domains.svg", "co-activation.svg", "router.svg"})
    EXPECT_TRUE(slurp(folder + "/" + name).starts_with("<svg ")) << name;
  const CommandResult refused =
      moe_command({"inspect", model(), "--text", texts(), "--pictures", *made_ / "texts/one.txt"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("cannot make the folder of --pictures"), std::string::npos)
      << refused.err;
}

TEST_F(InspectText, TablesForPeople) {
  const CommandResult r = moe_command({"inspect", model(), "--text", texts()});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"2 MoE layers of 4 experts", "routed dropless", "MaxVio", "two ",
                           "times even", "favourite tokens"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
}

TEST_F(InspectText, AFewTokensSayWhatTheyCan) {
  put(folder_ / "few.txt", "a few");
  const CommandResult r = moe_command({"inspect", model(), "--text", folder_ / "few.txt"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("5 tokens of 1 text,"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("favourite tokens"), std::string::npos) << "a heading over nothing\n"
                                                               << r.out;
}

// Names of files are bytes; nothing but tables, JSON and pages has to hold them as text.
TEST_F(InspectText, NamesThatAreNoText) {
  const std::string name = "latin\xE9\x1B[31m\nx";
  put(folder_ / (name + ".txt"), "a text of some length, read under a strange name\n");
  const std::string shown = "latin\uFFFD\uFFFD[31m\uFFFDx";
  const CommandResult r = moe_command({"inspect", model(), "--text", folder_.path(), "--html",
                                       folder_ / "page\xFF.html", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(parse_json(r.out, "reply").at("routing").at("domains").at(0).at("name"), shown);
  std::filesystem::create_symlink(model(), folder_ / "m\xFF");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"inspect", folder_ / "m\xFF", "--text", texts(), "--json"},
           {"inspect", folder_ / "m\xFF", "--json"},
           {"score", model(), "--text", texts(), "--record", folder_ / "r\xFF", "--json"},
           {"score", model(), "--text", texts(), "--replay", folder_ / "r\xFF", "--json"}}) {
    const CommandResult reply = moe_command(words);
    ASSERT_EQ(reply.code, 0) << reply.err;
    EXPECT_NO_THROW(parse_json(reply.out, "reply"));
  }
  const CommandResult trained =
      moe_command({"train", "--data", folder_ / (name + ".txt"), "--out", folder_ / "t\xFF",
                   "--from", model(), "--context", "16", "--batch", "1", "--steps", "1", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NO_THROW(parse_json(trained.out, "reply"));
  const CommandResult resumed = moe_command(
      {"train", "--resume", "--data", folder_ / (name + ".txt"), "--out", folder_ / "t\xFF",
       "--from", model(), "--context", "16", "--batch", "1", "--steps", "1"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

TEST_F(InspectText, DenseModelSaysSo) {
  const CommandResult r = moe_command(
      {"inspect", *made_ / "dense", "--text", texts(), "--html", folder_ / "dense.html"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("no MoE layer"), std::string::npos);
  const std::string page = slurp(folder_ / "dense.html");
  EXPECT_NE(page.find("2 layers, all dense: nothing is routed"), std::string::npos);
  EXPECT_NE(page.find("This model has no MoE layer"), std::string::npos);
}

// The losses of a window's tokens keep their logits, which score estimates too.
TEST_F(InspectText, EstimatesWhatTheLossTakes) {
  const auto activations = [&](const std::string& verb) {
    const CommandResult r = moe_command(
        {verb, model(), "--text", *made_ / "texts/one.txt", "--window", "1024", "--show-memory"});
    EXPECT_EQ(r.code, 0) << r.err;
    const size_t at = r.err.find("activations ");
    return r.err.substr(at, r.err.find(',', at) - at);
  };
  EXPECT_EQ(activations("inspect"), activations("score"));
}

TEST_F(InspectText, Refusals) {
  expect_refused({"inspect", model(), "--html", folder_ / "x.html"}, 2,
                 {"--html needs a text", "--text FILE"});
  expect_refused({"inspect", "--preset", "tiny", "--text", texts()}, 2, {"--text needs a model"});
  expect_refused({"inspect", model(), "--text", folder_ / "none.txt"}, 1, {"none.txt"});
  expect_refused({"inspect", model(), "--text", texts(), "--html", folder_ / "no/folder/x.html"}, 1,
                 {"x.html"});
  expect_refused({"inspect", model(), "--text", texts(), "--against", *made_ / "dense"}, 1,
                 {"--against must name an earlier checkpoint of the same model"});
  ASSERT_EQ(train("top1", {"--recipe", "olmoe", "--experts", "4", "--top-k", "1"}), 0);
  expect_refused({"inspect", model(), "--text", texts(), "--against", *made_ / "top1"}, 1,
                 {"it has 1 experts a token, the model has 2"});
  expect_refused({"inspect", model(), "--text", texts(), "--window", "1"}, 2, {"--window is 1"});
  expect_refused({"inspect", model(), "--text", texts(), "--routing", "droples"}, 2,
                 {"--routing", "dropless"});
  EXPECT_TRUE(folder_.entries().empty());
}

}  // namespace
}  // namespace moe::test::inspect_text_test
