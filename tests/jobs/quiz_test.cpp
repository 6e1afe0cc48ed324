// Of which words of a text `moe quiz` makes its questions, and what it refuses before it asks them.
#include "jobs/quiz.h"

#include "hub/hub.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace moe::quiz_test {
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

// The second is opened when the first has answered.
TEST(QuizJob, WhatIsWrongWithAModelIsSaidBeforeAnyIsAsked) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("w{} of v{} ", i, i * i);
  put(folder / "text.txt", text);
  ModelConfig short_config = plain_config();
  short_config.context = 8;
  save_model(folder / "first", *fresh(plain_config()), *make_tokenizer("bytes"));
  save_model(folder / "short", *fresh(short_config), *make_tokenizer("bytes"));
  QuizJob job;
  job.text = folder / "text.txt";
  job.quiz = {.questions = 4, .context = 3, .words = 3};
  bool begun = false;
  Watch watch;
  watch.begin = [&] {
    begun = true;
    return [](int64_t, int64_t, std::string_view) {};
  };
  for (const auto& [model, part] :
       {std::pair("none", "none"), {"short", "and the model's context is 8"}}) {
    job.models = {folder / "first", folder / model};
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, message_of([&] { quiz_models(job, watch); }));
    EXPECT_FALSE(begun) << model;
  }
}

}  // namespace
}  // namespace moe::quiz_test
