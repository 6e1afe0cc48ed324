// `moe quiz`: how often models answer questions right that are made of a text.
#include "jobs/quiz.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/words.h"
#include "hub/named_models.h"

namespace moe::cli {
namespace {

struct Flags {
  QuizJob job;
  bool json = false;
  Given given;
};

std::string percent(const Mean& s) {
  return fmt::format("{:.1f}% ± {:.1f}", 100 * s.value, 100 * s.error);
}
std::string points(const Mean& s) {
  return fmt::format("{:+.1f} ± {:.1f}", 100 * s.value, 100 * s.error);
}

int run_quiz(const Flags& f) {
  const QuizReply r = quiz_models(f.job, on_screen());
  if (f.json) {
    print_json(to_json(r));
    return 0;
  }
  fmt::print(
      "{} made of {}: behind {}, which of {} continuations of {} words stands there, and "
      "what the next word is\n\n",
      counted(r.quiz.questions, "question"), r.text, counted(r.quiz.context, "word"), kChoices,
      r.quiz.words);
  size_t width = 20;
  for (const QuizResult& m : r.models) width = std::max(width, m.model.size());
  fmt::print("  {:<{}}{:>16}{:>16}\n", "answered right", width, "continuation", "next word");
  for (const QuizResult& m : r.models) {
    fmt::print("  {:<{}}{:>16}{:>16}\n", m.model, width, percent(m.continuation), percent(m.word));
    if (&m != &r.models.front())
      fmt::print("  {:<{}}{:>16}{:>16}\n", "  against the first", width,
                 points(m.continuation_change), points(m.word_change));
  }
  fmt::print("  {:<{}}{:>16}\n", "by chance", width,
             fmt::format("{:.1f}%", 100.0 / static_cast<double>(kChoices)));
  return 0;
}

}  // namespace

Action add_quiz(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("MODEL", f->job.models,
           fmt::format("{}; further ones are held against the first, question by question",
                       kModelIs))
      .positional()
      .required();
  list.add(fields(f->job));
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_quiz(*f); };
}

}  // namespace moe::cli
