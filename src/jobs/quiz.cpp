#include "jobs/quiz.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "hub/hub.h"
#include "text/jsonl.h"
#include "text/source.h"

namespace moe {
namespace {

// A dialogue as what is said in it: each model marks its messages otherwise, and all are asked the
// same.
Document said(std::span<const Message> messages) {
  Document document = chat_document(messages);
  document.text.clear();
  for (const Message& message : messages) document.text += message.content + "\n";
  return document;
}

std::string text_of(const SourceFile& file) {
  if (!is_jsonl(file.path)) return std::string(file.bytes.text()) + '\n';
  std::string text;
  JsonlReader reader(file.bytes.text(), file.path, said, nullptr);
  Document document;
  while (reader.next(document)) {
    text += document.text + '\n';
    document = {};
  }
  return text;
}

// All files of a text, one behind another; of JSON Lines the documents.
std::string whole_text(const std::string& path) {
  std::string text;
  each_source({path}, {.text = [&](SourceFile&& file) { text += text_of(file); },
                       .tokens =
                           [&](const std::string& folder) {
                             fail("{} holds tokens; questions are made of text", folder);
                           }});
  return text;
}

// Of 1 for each question that was answered right, less the same of `than` where it is given.
Mean share_of(const std::vector<QuizAnswer>& answers, const std::vector<QuizAnswer>* than,
              bool QuizAnswer::*right) {
  std::vector<double> values;
  for (size_t i = 0; i < answers.size(); ++i)
    values.push_back((answers[i].*right ? 1.0 : 0.0) -
                     (than != nullptr && (*than)[i].*right ? 1.0 : 0.0));
  return mean_of(values);
}

QuizResult result_of(const std::string& model, const std::vector<QuizAnswer>& answers,
                     const std::vector<QuizAnswer>& first) {
  return {model, share_of(answers, nullptr, &QuizAnswer::continuation),
          share_of(answers, nullptr, &QuizAnswer::word),
          share_of(answers, &first, &QuizAnswer::continuation),
          share_of(answers, &first, &QuizAnswer::word)};
}

// A model, and the questions as it reads them.
struct AskedModel {
  LoadedModel loaded;
  DType dtype;
  std::vector<AskedQuestion> questions;

  AskedModel(const std::string& path, const QuizJob& job, std::span<const Question> quiz)
      : loaded(open_model(path, job.memory.limits)),
        dtype(compute_dtype(job.compute, *loaded.model)),
        questions(as_asked(quiz, *loaded.tokenizer, loaded.model->config().context)) {}
  ForwardUse use() { return quiz_use(*loaded.model, questions, dtype); }
};

const char* const kQuizAdvice = "lower @context or @words";

// What would be refused of one model once the others before it have answered.
void check_to_be_asked(const std::string& path, const QuizJob& job,
                       std::span<const Question> quiz) {
  AskedModel asked(path, job, quiz);
  const ForwardUse use = asked.use();
  check_forwards(path, std::span(&use, 1), {}, job.memory.limits, marked(kQuizAdvice));
}

Json to_json(const Mean& s) { return {{"value", s.value}, {"error", s.error}}; }

}  // namespace

FieldList fields(QuizJob& job) {
  FieldList list;
  list.add("text", job.text,
           "a text file or JSON Lines, or a folder of them, that the models were not made with")
      .required();
  list.add("questions", job.quiz.questions, "how many are made, spread evenly over the text");
  list.add("context", job.quiz.context, "words that a question gives").unit("words");
  list.add("words", job.quiz.words, "words of a continuation").unit("words");
  list.add("seed", job.quiz.seed, "of the places and of the wrong continuations");
  list.add(cpu_fields(job.compute));
  add_memory(list, job.memory);
  return list;
}

QuizReply quiz_models(const QuizJob& job, const Watch& watch) {
  const std::vector<Question> quiz = make_quiz(whole_text(job.text), job.quiz);
  QuizReply reply{job.text, job.quiz, {}};
  for (size_t i = 1; i < job.models.size(); ++i) check_to_be_asked(job.models[i], job, quiz);
  std::vector<QuizAnswer> first;
  for (const std::string& path : job.models) {
    AskedModel asked(path, job, quiz);
    prepare_memory(path, asked.use(), {}, job.memory, marked(kQuizAdvice), watch);
    Run run(thread_count(job.compute.threads), asked.dtype);
    const Progress progress = watch.begin();
    const std::vector<QuizAnswer> answers =
        take_quiz(*asked.loaded.model, run, asked.questions, [&](int64_t done, int64_t total) {
          if (watch.stopped()) fail("interrupted after {} of {} questions", done, total);
          progress(done, total, "questions of " + path);
        });
    if (reply.models.empty()) first = answers;
    reply.models.push_back(result_of(path, answers, first));
  }
  return reply;
}

Json to_json(const QuizReply& r) {
  Json models = Json::array();
  for (const QuizResult& m : r.models)
    models.push_back({{"model", m.model},
                      {"continuation", to_json(m.continuation)},
                      {"word", to_json(m.word)},
                      {"continuation_change", to_json(m.continuation_change)},
                      {"word_change", to_json(m.word_change)}});
  return {{"text", r.text},
          {"questions", r.quiz.questions},
          {"context", r.quiz.context},
          {"words", r.quiz.words},
          {"seed", r.quiz.seed},
          {"choices", kChoices},
          {"models", std::move(models)}};
}

}  // namespace moe
