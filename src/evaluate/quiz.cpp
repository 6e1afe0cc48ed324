#include "evaluate/quiz.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"
#include "core/words.h"
#include "infer/eval_routing.h"

namespace moe {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Where each word of the text ends, and before them 0.
std::vector<size_t> word_ends(std::string_view text) {
  std::vector<size_t> ends = {0};
  for (size_t i = 0; i < text.size(); ++i)
    if (!is_space(text[i]) && (i + 1 == text.size() || is_space(text[i + 1])))
      ends.push_back(i + 1);
  return ends;
}

// With one blank before each word: what else stands between them makes no other continuation.
std::string words_of(std::string_view text) {
  std::string words;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_space(text[i])) continue;
    if (i == 0 || is_space(text[i - 1])) words += ' ';
    words += text[i];
  }
  return words;
}

// A question's text as tokens, of which `context` are read.
AskedQuestion::Sequence sequence_of(const Question& q, const std::string& continuation,
                                    const Tokenizer& tokenizer, int64_t context,
                                    int64_t* word_end) {
  const std::string text = q.context + continuation;
  const std::vector<int64_t> starts = tokenizer.starts(text);
  AskedQuestion::Sequence s{.ids = tokenizer.encode_text(text), .bytes = std::ssize(continuation)};
  const int64_t before = std::ssize(s.ids) - std::ssize(starts),  // a token that begins texts
      behind = std::ssize(q.context);
  // The first token that ends behind the context; one needs another to be predicted from.
  s.first = std::max<int64_t>(
      1, before + (std::upper_bound(starts.begin(), starts.end(), behind) - starts.begin()) - 1);
  const int64_t end = before + (std::lower_bound(starts.begin(), starts.end(),
                                                 behind + static_cast<int64_t>(q.word)) -
                                starts.begin());
  const int64_t dropped = std::max<int64_t>(0, std::ssize(s.ids) - context);
  if (s.first - dropped < before + 1 && dropped > 0)
    fail_usage("a continuation takes {} tokens, and the model's context is {}; lower @words",
               std::ssize(s.ids) - s.first, context);
  s.ids.erase(s.ids.begin() + before, s.ids.begin() + before + dropped);
  s.first -= dropped;
  if (word_end != nullptr) *word_end = std::max(s.first, end - dropped);
  return s;
}

struct Prediction {
  double logprob = 0;         // of the continuation
  std::vector<char> is_best;  // of each of its tokens
};

// What stands at [begin, end) of `hidden` [N,D] predicts of the tokens behind each.
Prediction predicted(Model& model, Run& run, Tensor hidden, int64_t begin, int64_t end,
                     std::span<const int32_t> targets) {
  const ArenaScope scope(run.saved);
  const int64_t rows = end - begin, vocab = model.config().vocab;
  const Tensor logits = run.saved.alloc(DType::f32, {rows, vocab}),
               nll = run.saved.alloc(DType::f32, {rows}), lse = run.saved.alloc(DType::f32, {rows});
  model.logits(run, logits, hidden.slice_rows(begin, end));
  ops::cross_entropy_forward(run, nll, lse, logits, targets);
  Prediction out;
  for (int64_t i = 0; i < rows; ++i) {
    out.logprob -= static_cast<double>(nll.as<float>()[i]);
    const float* row = logits.row<float>(i);
    out.is_best.push_back(std::max_element(row, row + vocab) - row ==
                          targets[static_cast<size_t>(i)]);
  }
  return out;
}

QuizAnswer answer(Model& model, Run& run, const RoutingSpec& routing, const AskedQuestion& q) {
  std::vector<int32_t> ids, positions;
  std::vector<int64_t> bounds = {0};
  for (const AskedQuestion::Sequence& s : q.sequences) {
    ids.insert(ids.end(), s.ids.begin(), s.ids.end());
    positions.resize(ids.size());
    std::iota(positions.begin() + bounds.back(), positions.end(), 0);
    bounds.push_back(std::ssize(ids));
  }
  const ArenaScope scope(run.saved);
  ModelSaved saved;
  model.forward(run,
                {.batch = {ids, positions, bounds}, .routing = &routing, .same_everywhere = true},
                saved);
  QuizAnswer out;
  double right = 0, wrong = -INFINITY;
  for (size_t c = 0; c < q.sequences.size(); ++c) {
    const AskedQuestion::Sequence& s = q.sequences[c];
    const Prediction p =
        predicted(model, run, saved.hidden, bounds[c] + s.first - 1, bounds[c + 1] - 1,
                  std::span(s.ids).subspan(static_cast<size_t>(s.first)));
    const double a_byte = p.logprob / static_cast<double>(s.bytes);
    if (c > 0) {
      wrong = std::max(wrong, a_byte);
      continue;
    }
    right = a_byte;
    const auto word = p.is_best.begin() + (q.word_end - s.first);
    out.word = std::all_of(p.is_best.begin(), word, [](char best) { return best != 0; });
  }
  out.continuation = right > wrong;
  return out;
}

}  // namespace

std::vector<Question> make_quiz(std::string_view text, const QuizOptions& o) {
  constexpr int64_t kMost = int64_t{1} << 30;
  constexpr uint64_t kMostDraws = 1000;  // of a question
  for (const int64_t n : {o.questions, o.context, o.words})
    if (n < 1 || n > kMost)
      fail_usage("@questions {}, @context {} and @words {} must all be between 1 and {}",
                 o.questions, o.context, o.words, kMost);
  const std::vector<size_t> ends = word_ends(text);
  // A question takes `span` words of the text, from one of so many places on.
  const int64_t all = std::ssize(ends) - 1, span = o.context + o.words, places = all - span + 1;
  if (places < 2 * span || places < o.questions)
    fail(
        "the text has {} words, too few for {} questions of {} words and continuations of {} from "
        "elsewhere; give a longer text or lower @questions",
        all, o.questions, o.context, o.words);
  const auto part = [&](int64_t first, int64_t count) {
    const size_t begin = ends[static_cast<size_t>(first)],
                 end = ends[static_cast<size_t>(first + count)];
    return text.substr(begin, end - begin);
  };
  const RngKey key = RngKey::from_seed(o.seed);
  std::vector<Question> quiz;
  for (int64_t q = 0; q < o.questions; ++q) {
    const RngKey own = key.fold(static_cast<uint64_t>(q));
    uint64_t drawn = 0;
    const int64_t from = q * places / o.questions, to = (q + 1) * places / o.questions,
                  first = from + static_cast<int64_t>(
                                     uniform_index(own, drawn++, static_cast<uint64_t>(to - from)));
    Question& question = quiz.emplace_back();
    question.context = part(first, o.context);
    question.continuations.emplace_back(part(first + o.context, o.words));
    question.word = part(first + o.context, 1).size();
    std::vector<std::string> offered = {words_of(question.continuations[0])};
    while (std::ssize(question.continuations) < kChoices) {
      if (drawn > kMostDraws)
        fail(
            "the text repeats itself: in {} draws there were not {} different continuations of {} "
            "for a question; give another text, or raise @words",
            kMostDraws, kChoices, counted(o.words, "word"));
      const auto other = static_cast<int64_t>(
          uniform_index(own, drawn++, static_cast<uint64_t>(all - o.words + 1)));
      if (other + o.words > first && other < first + span) continue;
      const std::string_view continuation = part(other, o.words);
      std::string words = words_of(continuation);
      if (std::find(offered.begin(), offered.end(), words) != offered.end()) continue;
      offered.push_back(std::move(words));
      question.continuations.emplace_back(continuation);
    }
  }
  return quiz;
}

int64_t AskedQuestion::tokens() const {
  int64_t tokens = 0;
  for (const Sequence& s : sequences) tokens += std::ssize(s.ids);
  return tokens;
}

std::vector<AskedQuestion> as_asked(std::span<const Question> quiz, const Tokenizer& tokenizer,
                                    int64_t context) {
  std::vector<AskedQuestion> asked;
  for (const Question& q : quiz) {
    AskedQuestion& out = asked.emplace_back();
    for (const std::string& continuation : q.continuations)
      out.sequences.push_back(sequence_of(q, continuation, tokenizer, context,
                                          out.sequences.empty() ? &out.word_end : nullptr));
  }
  return asked;
}

ForwardUse quiz_use(Model& model, std::span<const AskedQuestion> quiz, DType dtype) {
  int64_t tokens = 0, predicted = 0;
  for (const AskedQuestion& q : quiz) {
    tokens = std::max(tokens, q.tokens());
    for (const AskedQuestion::Sequence& s : q.sequences)
      predicted = std::max(predicted, std::ssize(s.ids) - s.first);
  }
  return {.model = &model, .shape = {.tokens = tokens, .dtype = dtype, .logits = predicted}};
}

std::vector<QuizAnswer> take_quiz(Model& model, Run& run, std::span<const AskedQuestion> quiz,
                                  const std::function<void(int64_t, int64_t)>& progress) {
  const RoutingSpec routing = evaluation_spec(model.config(), std::nullopt, 0);
  std::vector<QuizAnswer> answers;
  for (const AskedQuestion& q : quiz) {
    answers.push_back(answer(model, run, routing, q));
    if (progress) progress(std::ssize(answers), std::ssize(quiz));
  }
  return answers;
}

}  // namespace moe
