// Two tasks that are made of a text: which of four continuations is the one that stands there, and
// what the next word is. They are made of words and bytes, so that models of any tokenizer answer
// the same questions. The first is what HellaSwag asks (Zellers et al., arXiv 1905.07830), with
// wrong continuations from elsewhere in the text, so easier; the second what LAMBADA asks (Paperno
// et al., arXiv 1606.06031), with words that are not chosen to need the context, so harder or
// easier as the text is.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/memory_plan.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace moe {

struct QuizOptions {
  int64_t questions = 400;
  int64_t context = 64;  // words that a question gives
  int64_t words = 12;    // of a continuation
  uint64_t seed = 1;     // of the places
};

constexpr int64_t kChoices = 4;

// A word is what stands between spaces; what stands before it belongs to it.
struct Question {
  std::string context;
  std::vector<std::string> continuations;  // [kChoices], the right one first
  size_t word = 0;                         // bytes of it that are its first word
};

// Questions spread evenly over the text, the wrong continuations drawn from all of it but the
// question's own place, no two of a question alike in their words. Fails where the text is too
// short for that, or repeats itself too much.
std::vector<Question> make_quiz(std::string_view text, const QuizOptions&);

// A question as a model reads it.
struct AskedQuestion {
  struct Sequence {
    std::vector<int32_t> ids;
    int64_t first = 0;  // the first token that has bytes of the continuation
    int64_t bytes = 0;  // of the continuation
  };
  std::vector<Sequence> sequences;  // [kChoices]
  int64_t word_end = 0;             // of the right one: one past the last token of its first word

  int64_t tokens() const;
};
// `context`: of the model; where a sequence is longer, its beginning is left out. Fails (usage)
// where a continuation alone is.
std::vector<AskedQuestion> as_asked(std::span<const Question>, const Tokenizer&, int64_t context);

struct QuizAnswer {
  // the right continuation has the largest log-probability a byte
  bool continuation = false;
  bool word = false;  // every token of the word is the likeliest where it stands
};

// What take_quiz() takes of a model.
ForwardUse quiz_use(Model&, std::span<const AskedQuestion>, DType dtype);
// Routed as the model is evaluated by default. `progress` is told how many questions are answered;
// may throw.
std::vector<QuizAnswer> take_quiz(Model&, Run&, std::span<const AskedQuestion>,
                                  const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace moe
