// Of which words of a text `moe quiz` makes its questions.
#include "jobs/quiz.h"

#include "support/files.h"

namespace moe {
namespace {

using namespace moe::test;

// How many words the questions are made of, as the refusal of too few says.
std::string refusal(const std::string& path) {
  QuizJob job;
  job.text = path;
  return message_of([&] { quiz_models(job, {}); });
}

TEST(QuizJob, AsksAboutTheDocumentsOfJsonLines) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += fmt::format("{{\"text\": \"w{}\"}}\n\n", i);
  put(folder / "texts.jsonl", lines);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "the text has 20 words",
                      refusal(folder / "texts.jsonl"));
  // what is said, without marks or roles
  put(folder / "talk.jsonl", R"({"messages": [{"role": "user", "content": "What routes?"}, )"
                             R"({"role": "assistant", "content": "A router does."}]})");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "the text has 5 words",
                      refusal(folder / "talk.jsonl"));
  put(folder / "both/a.txt", "three words here");
  put(folder / "both/b.jsonl", lines);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "the text has 23 words", refusal(folder / "both"));
}

TEST(QuizJob, RefusesWhatIsNoText) {
  const TempFolder folder;
  put(folder / "pairs.jsonl", R"({"prompt": "What?", "chosen": " This.", "rejected": " That."})");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "preference pairs", refusal(folder / "pairs.jsonl"));
  put(folder / "bad.jsonl", "{\"text\": 3}\n");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "bad.jsonl: line 1", refusal(folder / "bad.jsonl"));
}

}  // namespace
}  // namespace moe
