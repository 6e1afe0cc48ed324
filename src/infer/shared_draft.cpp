#include "infer/shared_draft.h"

#include <algorithm>
#include <utility>

#include "core/threads.h"

namespace moe {

SharedDraft::Reader::Reader(SharedDraft& draft, int32_t slot, int64_t limit, int64_t most)
    : draft_(draft), slot_(slot), limit_(limit), guesses_(most) {
  draft_.reserved_ += in_blocks(limit_);
}

SharedDraft::Reader::~Reader() {
  try {  // for texts that begin so
    draft_.prefixes_.keep(slot_, ids_);
  } catch (...) {  // without memory they read it again
  }
  draft_.runner_.cache().close(slot_);
  draft_.reserved_ -= in_blocks(limit_);
}

// The rows of an ask in the next step of the draft.
struct SharedDraft::Round {
  Ask* ask;
  StepRows rows;
  std::optional<Sampler> ahead;  // absent: nothing is guessed
  int64_t most;
  bool goes_on = false;
};

SharedDraft::SharedDraft(Model& model, Run& run, const Tokenizer& tokenizer, int64_t of_text,
                         int64_t cache_tokens, const DraftOptions& options,
                         const SessionOptions& session)
    : runner_(model, run, cache_tokens, session),
      draw_(model.config(), tokenizer, options),
      options_(options),
      of_text_(DraftModel::capacity(model.config(), of_text, run.device != nullptr)),
      prefixes_(runner_.cache()) {}

std::unique_ptr<SharedDraft::Reader> SharedDraft::follow(std::span<const int32_t> prompt,
                                                         int64_t limit) {
  limit = std::min(limit, of_text_);
  KvCache& cache = runner_.cache();
  if (std::ssize(prompt) > limit || reserved_ + in_blocks(limit) > cache.capacity() ||
      !draw_.knows(prompt))
    return nullptr;
  std::unique_ptr<Reader> reader(new Reader(*this, cache.open(limit), limit, options_.tokens));
  const int64_t held = prefixes_.adopt(reader->slot_, prompt);
  reader->ids_.assign(prompt.begin(), prompt.begin() + held);
  return reader;
}

// Drops what the text does not go on with, wrong guesses, say; of a prompt that is not known so far
// nothing. Of a text that is guessed for the last token is read in any case.
int64_t SharedDraft::unread_of(const Ask& ask) {
  Reader& reader = *ask.reader;
  const auto same =
      std::mismatch(ask.text.begin(), ask.text.end(), reader.ids_.begin(), reader.ids_.end());
  int64_t held = same.first - ask.text.begin();
  if (held == std::ssize(ask.text)) {
    if (ask.sampler == nullptr) return 0;
    --held;
  }
  reader.draft_.runner_.cache().truncate(reader.slot_, held);
  reader.ids_.resize(static_cast<size_t>(held));
  return std::ssize(ask.text) - held;
}

// Those that were read so far have their rows first; what is left of a chunk is for those that have
// more to read.
std::vector<SharedDraft::Round> SharedDraft::begin(std::span<Ask> asks) {
  std::vector<Round> few, many;
  for (Ask& ask : asks) {
    Reader& reader = *ask.reader;
    int64_t most = 0;
    if (ask.sampler != nullptr) {
      reader.guesses_.judge(ask.text);
      most = std::min(ask.most, reader.limit_ - std::ssize(ask.text) + 1);
      if (most > 0) most = std::min(most, reader.guesses_.next());
      if (most < 1) continue;
    }
    const int64_t unread = unread_of(ask);
    const std::span<const int32_t> ids = ask.text.last(static_cast<size_t>(unread));
    if (unread == 0 || !draw_.knows(ids)) continue;
    const bool drawn = ask.sampler != nullptr && unread <= kReadAsDrawn;
    (drawn ? few : many).push_back({&ask, {reader.slot_, ids, 0, !drawn}, std::nullopt, most});
  }
  std::vector<Round> rounds;
  int64_t left = prompt_chunk();
  for (std::vector<Round>* of : {&few, &many})
    for (Round& round : *of) {
      const std::span<const int32_t> unread = round.rows.ids;
      round.rows.ids = unread.first(static_cast<size_t>(std::min(std::ssize(unread), left)));
      left -= std::ssize(round.rows.ids);
      if (round.rows.ids.empty()) continue;
      if (round.ask->sampler != nullptr && round.rows.ids.size() == unread.size()) {
        round.ahead = *round.ask->sampler;
        round.rows.logits = 1;
        round.ask->reader->guesses_.begin(round.ask->text.size());
      }
      rounds.push_back(std::move(round));
    }
  return rounds;
}

void SharedDraft::step(std::span<Round> rounds) {
  KvCache& cache = runner_.cache();
  std::vector<StepRows> rows;
  int64_t more = 0, wanted = 0;
  for (const Round& round : rounds) {
    rows.push_back(round.rows);
    const int64_t held = cache.length(round.rows.slot);
    more += in_blocks(held + std::ssize(round.rows.ids)) - in_blocks(held);
    wanted += round.rows.logits;
  }
  prefixes_.make_room(more);
  logits_.resize(static_cast<size_t>(wanted) * draw_.rows());
  runner_.step(logits_, rows);
  for (const Round& round : rounds) {
    std::vector<int32_t>& ids = round.ask->reader->ids_;
    ids.insert(ids.end(), round.rows.ids.begin(), round.rows.ids.end());
    computed_ += std::ssize(round.rows.ids);
  }
}

// A guess of each, a thread each.
void SharedDraft::draw(std::span<Round> rounds) {
  std::vector<std::pair<Round*, std::span<const float>>> draws;
  for (Round& round : rounds) {
    round.goes_on = false;
    if (round.ahead)
      draws.emplace_back(&round, std::span<const float>(logits_).subspan(
                                     draws.size() * draw_.rows(), draw_.rows()));
  }
  parallel_for(runner_.threads(), std::ssize(draws), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Round& round = *draws[i].first;
      const std::optional<int32_t> id = draw_.next(*round.ahead, draws[i].second);
      if (!id) continue;
      GuessRecord& guesses = round.ask->reader->guesses_;
      guesses.add(*id);
      round.ask->guesses = guesses.ids();
      round.goes_on = guesses.count() < round.most;
      round.rows = {round.rows.slot, {&guesses.ids().back(), 1}};
    }
  });
}

void SharedDraft::guess(std::span<Ask> asks) {
  for (std::vector<Round> rounds = begin(asks); !rounds.empty();) {
    step(rounds);
    draw(rounds);
    std::erase_if(rounds, [](const Round& round) { return !round.goes_on; });
  }
}

}  // namespace moe
