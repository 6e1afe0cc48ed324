#include "infer/batcher.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/threads.h"
#include "moe/layer.h"
#include "moe/stages/replay.h"

namespace moe {
namespace {

// Tokens of prompts that a step reads beside replies, which wait for them; fewer would leave the
// products of the experts too few rows each.
constexpr int64_t kChunkBesideReplies = 256;
constexpr int64_t kLogitBytes = int64_t{64} << 20;  // of a step for log-probabilities of a prompt

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What log-probabilities of one row of logits [V] are made of. `texts`: ids that texts have; a
// model may have rows behind them, which stand for no token and are nobody's alternative.
class LogSoftmax {
 public:
  LogSoftmax(std::span<const float> logits, int64_t texts) : logits_(logits), texts_(texts) {
    const float most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x - most));
    shift_ = most + std::log(sum);
  }
  TokenLogprob of(int32_t id) const {
    return {id, static_cast<float>(logits_[static_cast<size_t>(id)] - shift_)};
  }
  std::vector<TokenLogprob> top(int64_t count) const {
    std::vector<int32_t> ids(static_cast<size_t>(texts_));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    const auto end = ids.begin() + std::min<int64_t>(count, std::ssize(ids));
    std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
      const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    std::vector<TokenLogprob> top;
    for (auto id = ids.begin(); id != end; ++id) top.push_back(of(*id));
    return top;
  }

 private:
  std::span<const float> logits_;
  int64_t texts_;
  double shift_;
};

TokenLogprobs logprobs_of(std::span<const float> logits, int64_t texts, int32_t id, int64_t top) {
  const LogSoftmax softmax(logits, texts);
  return {softmax.of(id), softmax.top(top)};
}

int64_t rank_of(std::span<const float> logits, int32_t id) {
  const float own = logits[static_cast<size_t>(id)];
  return std::count_if(logits.begin(), logits.end(), [&](float x) { return x >= own; });
}

void check_ids(std::span<const int32_t> ids, int64_t vocab) {
  if (ids.empty()) fail_usage("the prompt has no tokens; give at least one");
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      fail_usage("token {} of the prompt has the id {}, but the vocabulary ends at {}", i + 1,
                 ids[i], vocab - 1);
}

// The most tokens that are read of its text: the last one written is not.
int64_t limit_of(const TextRequest& request) {
  return std::ssize(request.prompt) + std::max<int64_t>(request.options.max_tokens, 1) - 1;
}

// What is shown of a prompt's tokens is what drawn ones would have (Pass::only_read).
bool only_reads(const TextRequest& request) { return !request.routing && !request.prompt_logprobs; }

// Guesses would be read with recorded choices of other tokens, and where somebody else guesses
// already there is nothing to add.
bool can_be_drafted(const TextRequest& request) {
  const GenerateOptions& options = request.options;
  return !request.recorded && options.prompt_lookup == 0 && options.guesser == nullptr &&
         options.max_tokens > 2;
}

// Log-probabilities and routing are of tokens that are read, and what is replayed is another's.
bool all_read(const TextRequest& request) { return !only_reads(request) || request.recorded; }

}  // namespace

void TokenRouting::drop_last(int64_t tokens) {
  if (ids.empty()) return;
  const size_t left = ids.size() - static_cast<size_t>(tokens);
  experts.resize(experts.size() / ids.size() * left);
  weights.resize(weights.size() / ids.size() * left);
  ids.resize(left);
}

struct Batcher::Text {
  Text(TextRequest given, const Tokenizer& tokenizer, int32_t its_slot, int64_t room)
      : request(std::move(given)),
        slot(its_slot),
        reserved(room),
        generation(
            tokenizer, request.prompt, request.options,
            [this](const std::string& text) {
              progress.text += text;
              return !request.goes_on || request.goes_on(text);
            },
            request.grammar ? std::make_unique<grammar::Constraint>(request.grammar, request.tokens)
                            : nullptr),
        drafted(can_be_drafted(request)) {}

  int64_t prompt_tokens() const { return std::ssize(request.prompt); }
  bool reads() const { return read < prompt_tokens(); }

  TextRequest request;
  int32_t slot;
  int64_t reserved;    // tokens, whole blocks
  int64_t read = 0;    // of the prompt's tokens
  int64_t cached = 0;  // of them, those that another text had read
  int64_t pieces = 0;  // steps that read of the prompt
  Clock::time_point began = Clock::now(), wrote = began;
  TextProgress progress;
  Generation generation;
  bool drafted;                                // whether the draft may guess
  std::unique_ptr<SharedDraft::Reader> draft;  // null: it has read nothing
  bool ends = false;                           // with what was drawn last
  bool ended = false;
};

// Rows of one text in a step.
struct Batcher::Part {
  Text* text;
  StepRows rows;
  int64_t position;     // of the first of them in its text
  int64_t first_row;    // among those of the step
  int64_t first_logit;  // row of logits
};

struct Batcher::Step {
  std::vector<Part> parts;
  int64_t tokens = 0, wanted = 0;  // rows, and those of them whose logits are wanted
  bool replayed = false;
  int32_t adapter = 0;

  void add(Text& text, int64_t position, std::span<const int32_t> ids, int64_t logits,
           bool only_read) {
    parts.push_back({&text, {text.slot, ids, logits, only_read}, position, tokens, wanted});
    tokens += std::ssize(ids);
    wanted += logits;
  }
};

Batcher::Batcher(ModelRunner& runner, const Tokenizer& tokenizer, int64_t parallel, int64_t context,
                 SharedDraft* draft)
    : runner_(runner),
      tokenizer_(tokenizer),
      parallel_(parallel),
      context_(context),
      draft_(draft),
      prefixes_(runner.cache()) {
  if (parallel < 1) fail_usage("@parallel is {}; it must be at least 1", parallel);
}

Batcher::~Batcher() {
  for (const auto& text : active_) runner_.cache().close(text->slot);
}

void Batcher::check(const TextRequest& request) const {
  const ModelConfig& config = runner_.model().config();
  validate(request.options);
  check_guessing(config, request.options);
  check_ids(request.prompt, text_vocab(config, tokenizer_));
  const int64_t prompt = std::ssize(request.prompt), most = most_tokens();
  if (prompt > most || (prompt == most && request.options.max_tokens > 1))
    fail_usage("the prompt has {} tokens and a text may have {}; shorten it", prompt, most);
  if (request.adapter < 0 || request.adapter > runner_.adapters())
    fail_usage("adapter {} is asked for, and there are {}", request.adapter, runner_.adapters());
  if (!request.recorded) return;
  const std::vector<int32_t>& recorded = *request.recorded;
  const int64_t row = config.moe_layer_count() * runner_.slots();
  if (row == 0) fail_usage("the model is dense, so there are no choices to replay");
  if (std::ssize(recorded) % row != 0)
    fail_usage("the choices to replay are {} numbers; each token has {} x {}", recorded.size(),
               config.moe_layer_count(), runner_.slots());
  const int64_t rows = std::ssize(recorded) / runner_.slots();
  // The record is only read.
  check_recorded(Tensor(const_cast<int32_t*>(recorded.data()), DType::i32, {rows, runner_.slots()}),
                 rows, runner_.slots(), config.routing.scored(), "replay");
}

void Batcher::add(TextRequest request) {
  check(request);
  GenerateOptions& options = request.options;
  options.max_tokens = std::min(options.max_tokens, most_tokens() - std::ssize(request.prompt) + 1);
  // Guesses would be read with the choices of others.
  if (request.recorded) options.prompt_lookup = 0;
  try {
    waiting_.emplace_back();
  } catch (...) {
    return request.on_end({}, std::current_exception());
  }
  waiting_.back() = std::move(request);
}

// The client whose last text was admitted longest ago, and of its texts the first.
std::deque<TextRequest>::iterator Batcher::next_in_turn() {
  const auto turn = [&](const std::string& client) {
    const auto found = turns_.find(client);
    return found == turns_.end() ? 0 : found->second;
  };
  auto best = waiting_.end();
  for (auto request = waiting_.begin(); request != waiting_.end(); ++request) {
    if (begins_like_one_being_read(*request)) continue;
    if (best == waiting_.end() || turn(request->client) < turn(best->client)) best = request;
  }
  return best;
}

// Such a text waits until what it begins with can be taken over.
bool Batcher::begins_like_one_being_read(const TextRequest& request) const {
  if (all_read(request) || runner_.cache().has_states()) return false;
  const auto& ids = request.prompt;
  const int64_t held = prefixes_.held(ids, runner_.cache().stretches(limit_of(request)),
                                      request.adapter),
                left = std::ssize(ids) - held;
  return std::any_of(active_.begin(), active_.end(), [&](const auto& text) {
    if (!text->reads() || text->request.adapter != request.adapter) return false;
    const auto& other = text->request.prompt;
    const int64_t alike =
        std::mismatch(ids.begin(), ids.end(), other.begin(), other.end()).first - ids.begin();
    return 2 * (alike / ops::kKeyBlock * ops::kKeyBlock - held) >= std::max<int64_t>(left, 2);
  });
}

void Batcher::admit() {
  while (active() < parallel_) {
    const auto request = next_in_turn();
    if (request == waiting_.end()) return;
    int64_t reserved = in_blocks(limit_of(*request));
    for (const auto& text : active_) reserved += text->reserved;
    if (reserved > runner_.cache().capacity() && active() > 0) return;
    TextRequest taken = std::move(*request);
    waiting_.erase(request);
    begin(std::move(taken));
  }
}

void Batcher::begin(TextRequest request) {
  const int64_t limit = limit_of(request), room = in_blocks(limit);
  decltype(request.on_end) on_end;
  int32_t slot = 0;
  try {
    turns_[request.client] = ++turn_;
    on_end = request.on_end;
    slot = runner_.cache().open(limit);
  } catch (...) {
    return request.on_end({}, std::current_exception());
  }
  try {
    active_.push_back(std::make_unique<Text>(std::move(request), tokenizer_, slot, room));
  } catch (...) {  // a grammar that has too many ways to begin, say
    runner_.cache().close(slot);
    return on_end({}, std::current_exception());
  }
  Text& text = *active_.back();
  if (all_read(text.request)) return;
  try {
    text.read = text.cached = prefixes_.adopt(slot, text.request.prompt, text.request.adapter);
  } catch (...) {  // it reads all of it itself
  }
}

void Batcher::drop_unwanted() {
  for (const auto& text : active_)
    if (text->request.wanted && !text->request.wanted()) end(*text, nullptr, "interrupted");
  std::erase_if(active_, [](const auto& text) { return text->ended; });
  for (auto request = waiting_.begin(); request != waiting_.end();) {
    if (!request->wanted || request->wanted()) {
      ++request;
      continue;
    }
    const TextRequest gone = std::move(*request);
    request = waiting_.erase(request);
    Generated nothing;
    nothing.finish = "interrupted";
    gone.on_end(nothing, nullptr);
  }
  // Nobody waits for a turn of a client that has no text. Now and then is often enough.
  if (std::ssize(turns_) <= 2 * (active() + waiting()) + 16) return;
  std::erase_if(turns_, [&](const auto& turn) {
    const auto its = [&](const auto& client) { return client == turn.first; };
    return std::none_of(active_.begin(), active_.end(),
                        [&](const auto& text) { return its(text->request.client); }) &&
           std::none_of(waiting_.begin(), waiting_.end(),
                        [&](const auto& request) { return its(request.client); });
  });
}

// The draft reads a prompt along with the model, and guesses behind what was drawn last. A reply
// does not need it: where it fails the texts go on without.
void Batcher::guess_ahead() {
  if (draft_ == nullptr || active() > SharedDraft::kTexts) return;
  try {
    guess_with_draft();
  } catch (...) {
    for (const auto& text : active_) {
      text->drafted = false;
      text->draft.reset();
    }
  }
}

void Batcher::guess_with_draft() {
  std::vector<SharedDraft::Ask> asks;
  std::vector<Text*> asked;
  for (const auto& text : active_) {
    if (!text->drafted) continue;
    if (!text->draft) text->draft = draft_->follow(text->request.prompt, limit_of(text->request));
    if (!text->draft) continue;
    const Generation& g = text->generation;
    asked.push_back(text.get());
    asks.push_back(text->reads()
                       ? SharedDraft::Ask{text->draft.get(),
                                          std::span<const int32_t>(text->request.prompt)
                                              .first(static_cast<size_t>(text->read)),
                                          nullptr,
                                          0,
                                          {}}
                       : SharedDraft::Ask{
                             text->draft.get(), g.text(), &g.sampler(), g.room_for_guesses(), {}});
  }
  draft_->guess(asks);
  for (size_t i = 0; i < asks.size(); ++i) asked[i]->generation.guess(asks[i].guesses);
}

// Rows of the text for a step that reads at most `most` of its prompt.
void Batcher::add_rows(Step& step, Text& text, int64_t most) const {
  const int64_t position = runner_.cache().length(text.slot);
  if (!text.reads()) {
    const std::span<const int32_t> ids = text.generation.next();
    return step.add(text, position, ids, std::ssize(ids), false);
  }
  const TextRequest& request = text.request;
  if (request.prompt_logprobs)
    most = std::min(most, std::max<int64_t>(1, kLogitBytes / (4 * runner_.model().config().vocab)));
  const int64_t count = std::min(most, text.prompt_tokens() - text.read);
  const bool last = text.read + count == text.prompt_tokens();
  step.add(
      text, position,
      std::span(request.prompt).subspan(static_cast<size_t>(text.read), static_cast<size_t>(count)),
      request.prompt_logprobs ? count : last, only_reads(request) && !step.replayed);
}

// Every reply goes on by a token. Of the prompts those that were begun on least go first, so that a
// long one does not hold up short ones. The rows of a step are replayed all or none and computed
// with one adapter, so a text that replays has steps of its own, and each adapter has.
std::vector<Batcher::Step> Batcher::plan_steps() const {
  std::vector<Step> replays;
  std::map<int32_t, Step> steps;  // by adapter
  std::vector<Text*> readers;
  for (const auto& text : active_) {
    const int32_t adapter = text->request.adapter;
    if (const int64_t recorded = recorded_ahead(*text); recorded > 0) {
      Step& step = replays.emplace_back();
      step.replayed = true;
      step.adapter = adapter;
      add_rows(step, *text, std::min(recorded, prompt_chunk()));
      continue;
    }
    Step& step = steps[adapter];
    step.adapter = adapter;
    if (text->reads()) readers.push_back(text.get());
    else add_rows(step, *text, 1);
  }
  std::stable_sort(readers.begin(), readers.end(),
                   [](const Text* a, const Text* b) { return a->pieces < b->pieces; });
  std::map<int32_t, int64_t> most;
  for (const auto& [adapter, step] : steps)
    most[adapter] = step.tokens + (step.parts.empty() ? prompt_chunk() : kChunkBesideReplies);
  for (Text* text : readers) {
    Step& step = steps[text->request.adapter];
    if (const int64_t room = most[step.adapter] - step.tokens; room > 0)
      add_rows(step, *text, room);
  }
  std::vector<Step> all;
  for (auto& [adapter, step] : steps) all.push_back(std::move(step));
  std::move(replays.begin(), replays.end(), std::back_inserter(all));
  return all;
}

// Tokens of the record that the text has not come to yet.
int64_t Batcher::recorded_ahead(const Text& text) const {
  if (!text.request.recorded) return 0;
  const int64_t row = runner_.model().config().moe_layer_count() * runner_.slots();
  return std::ssize(*text.request.recorded) / row - runner_.cache().length(text.slot);
}

// The choices [rows,K] of each MoE layer that a step of one text replays.
std::vector<std::vector<int32_t>> Batcher::recorded_rows(const Part& part) const {
  const int64_t layers = runner_.model().config().moe_layer_count(), slots = runner_.slots();
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(layers));
  for (int64_t n = 0; n < std::ssize(part.rows.ids); ++n)
    for (int64_t layer = 0; layer < layers; ++layer) {
      const auto from =
          part.text->request.recorded->begin() + ((part.position + n) * layers + layer) * slots;
      auto& to = rows[static_cast<size_t>(layer)];
      to.insert(to.end(), from, from + slots);
    }
  return rows;
}

void Batcher::run(const Step& step) {
  std::vector<StepRows> rows;
  int64_t more = 0;
  bool routing = false;
  for (const Part& part : step.parts) {
    rows.push_back(part.rows);
    more += in_blocks(part.position + std::ssize(part.rows.ids)) - in_blocks(part.position);
    routing |= part.text->request.routing;
  }
  prefixes_.make_room(more);
  runner_.choose_adapter(step.adapter);
  logits_.resize(static_cast<size_t>(step.wanted * runner_.model().config().vocab));
  std::vector<std::vector<int32_t>> choices;
  std::vector<Tensor> recorded;  // [N,K] i32 of each MoE layer
  if (step.replayed) choices = recorded_rows(step.parts[0]);
  for (auto& choice : choices)
    recorded.push_back(Tensor(choice.data(), DType::i32, {step.tokens, runner_.slots()}));
  seen_.assign(routing ? static_cast<size_t>(runner_.model().config().moe_layer_count()) : 0, {});
  size_t layers = 0;
  const std::function<void(int64_t, const MoeLayerSaved&)> look =
      [&](int64_t, const MoeLayerSaved& saved) { seen_[layers++].take(saved); };
  runner_.step(
      logits_, rows,
      {.on_routing = routing ? &look : nullptr, .recorded = step.replayed ? &recorded : nullptr});
}

void Batcher::LayerChoices::take(const MoeLayerSaved& saved) {
  const Tensor& choice = saved.router.choice;
  slots = choice.cols();
  experts.resize(static_cast<size_t>(choice.numel()));
  weights.assign(experts.size(), 0);
  record_choices(Tensor(experts.data(), DType::i32, {choice.rows(), slots}), choice,
                 saved.router.selected, saved.router.kept);
  each_kept_pair(saved.plan, saved.router, [&](size_t pair, float w) { weights[pair] = w; });
}

void Batcher::show_routing(const Part& part) const {
  TokenRouting& routing = part.text->progress.routing;
  routing.ids.insert(routing.ids.end(), part.rows.ids.begin(), part.rows.ids.end());
  for (int64_t n = 0; n < std::ssize(part.rows.ids); ++n)
    for (const LayerChoices& layer : seen_) {
      const int64_t from = (part.first_row + n) * layer.slots, to = from + layer.slots;
      routing.experts.insert(routing.experts.end(), layer.experts.begin() + from,
                             layer.experts.begin() + to);
      routing.weights.insert(routing.weights.end(), layer.weights.begin() + from,
                             layer.weights.begin() + to);
    }
}

std::span<const float> Batcher::logits_of(const Part& part, int64_t row, int64_t rows) const {
  const int64_t vocab = runner_.model().config().vocab;
  return std::span(logits_).subspan(static_cast<size_t>((part.first_logit + row) * vocab),
                                    static_cast<size_t>(rows * vocab));
}

// The text's next tokens, where the step came to its prompt's end or behind it. Touches nothing but
// the text.
void Batcher::draw(const Part& part) const {
  Text& text = *part.text;
  if (text.request.routing) show_routing(part);  // what is drawn takes the place of the ids read
  const int64_t read = std::ssize(part.rows.ids);
  const bool writes = !text.reads();
  if (!writes && text.read + read < text.prompt_tokens()) return;
  const int64_t rows = writes ? part.rows.logits : 1, first = part.rows.logits - rows;
  const size_t before = text.generation.written().ids.size();
  text.ends = !text.generation.take(logits_of(part, first, rows));
  const auto& ids = text.generation.written().ids;
  const int64_t texts = text_vocab(runner_.model().config(), tokenizer_);
  // Each token that was read brought one that was drawn, but for guesses that came to nothing.
  if (writes) text.progress.routing.drop_last(read - static_cast<int64_t>(ids.size() - before));
  for (size_t i = before; i < ids.size(); ++i) {
    text.progress.ids.push_back(ids[i]);
    if (text.request.top_logprobs >= 0)
      text.progress.logprobs.push_back(
          logprobs_of(logits_of(part, first + static_cast<int64_t>(i - before), 1), texts, ids[i],
                      text.request.top_logprobs));
  }
}

// A vocabulary is long and a text's tokens are drawn from it one after another, so that threads
// take a text each.
std::vector<std::exception_ptr> Batcher::draw_all(const Step& step) const {
  std::vector<std::exception_ptr> errors(step.parts.size());
  parallel_for(runner_.threads(), std::ssize(step.parts), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      try {
        draw(step.parts[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  });
  return errors;
}

// What the prompt's tokens that were read now predicted of those after them.
void Batcher::show_prompt_logprobs(const Part& part) {
  Text& text = *part.text;
  const auto& prompt = text.request.prompt;
  const int64_t first = text.read,
                rows = std::min(std::ssize(part.rows.ids), std::ssize(prompt) - 1 - first);
  const int64_t asked = text.request.prompt_alternatives,
                top = asked >= 0 ? asked : text.request.top_logprobs,
                texts = text_vocab(runner_.model().config(), tokenizer_);
  auto& to = text.progress.prompt_logprobs;
  to.resize(static_cast<size_t>(rows));
  parallel_for(runner_.threads(), rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      const std::span<const float> logits = logits_of(part, n, 1);
      const int32_t id = prompt[static_cast<size_t>(first + n + 1)];
      TokenLogprobs& token = to[static_cast<size_t>(n)] = logprobs_of(logits, texts, id, top);
      if (asked >= 0) token.rank = rank_of(logits.first(static_cast<size_t>(texts)), id);
    }
  });
}

void Batcher::deliver(const Part& part) {
  Text& text = *part.text;
  if (text.reads()) {
    if (text.request.prompt_logprobs) show_prompt_logprobs(part);
    ++text.pieces;
    text.read += std::ssize(part.rows.ids);
    if (text.reads()) return flush(text);
    keep_prefix(text, text.request.prompt);
    text.wrote = Clock::now();
  }
  if (text.ends) return end(text, nullptr);
  KvCache& cache = runner_.cache();
  cache.truncate(text.slot, cache.length(text.slot) - text.generation.rejected());
  flush(text);
}

// For others, whose prompts begin so and would be read alike.
void Batcher::keep_prefix(const Text& text, std::span<const int32_t> ids) {
  const TextRequest& request = text.request;
  if (request.recorded || (runner_.model().config().by_neuron() && !only_reads(request))) return;
  prefixes_.keep(text.slot, ids, request.adapter);
}

void Batcher::flush(Text& text) {
  if (!text.progress.empty() && text.request.on_progress) text.request.on_progress(text.progress);
  text.progress = {};
}

// Throws nothing: whatever happens the text's room is free again, and whoever waits for it is told.
void Batcher::end(Text& text, const std::exception_ptr& error, const char* finish) {
  Generated out;
  std::exception_ptr failure = error;
  try {
    out = text.generation.finish();
    if (finish != nullptr) out.finish = finish;
    if (!failure) flush(text);
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  try {
    std::vector<int32_t> held = text.request.prompt;
    held.insert(held.end(), out.ids.begin(), out.ids.end());
    // What was drawn last is not read; behind it the cache may have guesses.
    if (!out.ids.empty()) held.pop_back();
    keep_prefix(text, held);
  } catch (...) {  // those that begin alike read it themselves
  }
  runner_.cache().close(text.slot);
  const Clock::time_point now = Clock::now();
  out.read_tokens = text.read - text.cached;
  out.prompt_seconds = seconds_between(text.began, text.reads() ? now : text.wrote);
  out.decode_seconds = text.reads() ? 0 : seconds_between(text.wrote, now);
  text.ended = true;
  text.request.on_end(out, failure);
}

// Of a model with states a step that fails takes back all of a text, not its own rows alone. What
// stood before them is read again.
void Batcher::read_again(const Part& part) {
  const Text& text = *part.text;
  const KvCache& cache = runner_.cache();
  std::vector<int32_t> before = text.request.prompt;
  const std::vector<int32_t>& written = text.generation.written().ids;
  before.insert(before.end(), written.begin(), written.end());
  before.resize(static_cast<size_t>(part.position));
  runner_.choose_adapter(text.request.adapter);
  for (int64_t at; (at = cache.length(text.slot)) < part.position;) {
    const StepRows rows{text.slot,
                        std::span(before).subspan(
                            static_cast<size_t>(at),
                            static_cast<size_t>(std::min(prompt_chunk(), part.position - at))),
                        0, true};
    runner_.step({}, {&rows, 1});
  }
}

// A step that fails has changed nothing that cannot be made good (ModelRunner::step), so the texts
// whose rows made it fail are found by themselves, and the others go on.
void Batcher::run_and_deliver(const Step& step) {
  try {
    run(step);
  } catch (...) {
    if (step.parts.size() == 1) return end(*step.parts[0].text, std::current_exception());
    for (const Part& part : step.parts) {
      try {
        Step alone;
        alone.adapter = step.adapter;
        alone.add(*part.text, part.position, part.rows.ids, part.rows.logits, part.rows.only_read);
        read_again(part);
        run_and_deliver(alone);
      } catch (...) {
        if (!part.text->ended) end(*part.text, std::current_exception());
      }
    }
    return;
  }
  const std::vector<std::exception_ptr> errors = draw_all(step);
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const Part& part = step.parts[i];
    try {
      if (errors[i]) std::rethrow_exception(errors[i]);
      deliver(part);
    } catch (...) {
      if (!part.text->ended) end(*part.text, std::current_exception());
    }
  }
}

bool Batcher::step() {
  drop_unwanted();
  admit();
  guess_ahead();
  try {
    for (const Step& step : plan_steps()) run_and_deliver(step);
  } catch (...) {  // no memory to plan with, say, which is nobody's fault alone
    for (const auto& text : active_)
      if (!text->ended) end(*text, std::current_exception());
  }
  std::erase_if(active_, [](const auto& text) { return text->ended; });
  return !active_.empty() || !waiting_.empty();
}

}  // namespace moe
