// Encoding and decoding.
#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <utility>

#include "core/error.h"
#include "text/splitter.h"
#include "text/utf8.h"

namespace moe {
namespace {

constexpr size_t kMostRemembered = 1 << 16;
constexpr size_t kLongestRemembered = 64;

// Where the ids of a piece met before stand in the output. Words repeat, so most pieces are copied.
// One place a hash: what collides is forgotten, so no text can make a lookup slow.
class Seen {
 public:
  explicit Seen(size_t text_size)
      : slots_(std::bit_ceil(std::clamp<size_t>(text_size / 4, 16, kMostRemembered))) {}

  // Copies the piece's ids to the end; false when it is not remembered.
  bool copy(std::string_view piece, std::vector<int32_t>& ids) {
    const Slot& slot = slot_of(piece);
    if (slot.piece != piece) return false;
    const size_t to = ids.size();
    ids.resize(to + slot.count);
    std::copy_n(ids.begin() + static_cast<int64_t>(slot.at), slot.count,
                ids.begin() + static_cast<int64_t>(to));
    return true;
  }
  void remember(std::string_view piece, size_t at, size_t count) {
    slot_of(piece) = {piece, at, count};
  }

 private:
  struct Slot {
    std::string_view piece;  // of the text being encoded
    size_t at, count;
  };
  Slot& slot_of(std::string_view piece) {
    return slots_[std::hash<std::string_view>{}(piece) & (slots_.size() - 1)];
  }
  std::vector<Slot> slots_;
};

uint32_t packed(std::string_view character) {
  uint32_t code = 0;
  for (const char byte : character) code = code << 8 | static_cast<unsigned char>(byte);
  return code;
}

std::vector<AddedToken> normalized_tokens(std::vector<AddedToken> tokens,
                                          const std::vector<NormalizerStep>& normalizer) {
  for (AddedToken& token : tokens) token.content = normalize(normalizer, token.content);
  return tokens;
}

bool is_mark_inside(std::string_view word) {
  for (size_t at = word.find(kSpaceMark); at != std::string_view::npos;
       at = word.find(kSpaceMark, at + 1))
    if (at > 0 && !word.substr(0, at).ends_with(kSpaceMark)) return true;
  return false;
}

// A piece of the normalised text and the way back from it; `map` is null where nobody asked.
struct Piece {
  std::string_view text;
  const SourceMap* map;
  size_t at;     // where the piece begins in what `map` leads back from
  size_t begin;  // where what it leads back to begins in the text
  size_t source(size_t offset) const { return begin + map->source(at + offset); }
};

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts)
      : parts_(std::move(parts)),
        splitter_(parts_.patterns),
        table_(parts_.merges, vocab_size()),
        added_(parts_.added),
        added_late_(normalized_tokens(parts_.added_late, parts_.normalizer)) {
    set_special(parts_.special);
    if (parts_.characters) index_characters(*parts_.characters);
    if (parts_.characters && parts_.characters->scores)
      unigram_.emplace(parts_.characters->words, *parts_.characters->scores);
    if (!parts_.ignore_merges) return;
    for (size_t id = 0; id < parts_.pieces.size(); ++id) {
      const std::string_view name = parts_.characters
                                        ? std::string_view(parts_.characters->words[id])
                                        : std::string_view(parts_.pieces[id]);
      if (!name.empty() && (parts_.characters || parts_.in_vocab[id]))
        whole_.emplace_back(name, static_cast<int32_t>(id));
    }
    std::sort(whole_.begin(), whole_.end());
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(parts_.pieces.size()); }
  std::string spec() const override { return "bpe"; }
  std::string to_json() const override {
    return parts_.json.empty() ? write_bpe(parts_) : parts_.json;
  }

  std::string piece(int32_t id) const override {
    if (id < 0 || id >= vocab_size())
      fail("token id {} is outside the tokenizer's 0..{}", id, vocab_size() - 1);
    return parts_.pieces[static_cast<size_t>(id)];
  }

  std::vector<int32_t> marks() const override {
    std::vector<int32_t> ids;
    for (const std::vector<AddedToken>* tokens : {&parts_.added, &parts_.added_late})
      for (const AddedToken& token : *tokens) ids.push_back(token.id);
    if (parts_.unk) ids.push_back(*parts_.unk);
    return ids;
  }

  std::vector<int32_t> special_marks() const override {
    std::vector<int32_t> ids;
    for (const std::vector<AddedToken>* tokens : {&parts_.added, &parts_.added_late})
      for (const AddedToken& token : *tokens)
        if (token.special) ids.push_back(token.id);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text = Tokenizer::decode(ids);
    if (!parts_.characters) return text;
    const size_t most = parts_.characters->strip_first && !ids.empty()
                            ? piece(ids[0]).size()
                            : static_cast<size_t>(parts_.characters->strip);
    text.erase(0, std::min(most, std::min(text.find_first_not_of(' '), text.size())));
    return text;
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    Seen seen(text.size());
    each_part(
        text, false, [&](int32_t id, size_t) { ids.push_back(id); },
        [&](const Piece& piece) { encode_piece(piece.text, seen, ids); });
    return ids;
  }

  std::vector<int64_t> starts(std::string_view text) const override {
    std::vector<int64_t> at;
    std::vector<int32_t> ids;
    const auto part = [&](const Piece& piece) {
      ids.clear();
      Seen none(0);
      encode_piece(piece.text, none, ids);
      size_t done = 0;
      for (const int32_t id : ids) {
        at.push_back(static_cast<int64_t>(piece.source(std::min(done, piece.text.size()))));
        done += length_of(id);
      }
    };
    each_part(
        text, true, [&](int32_t, size_t begin) { at.push_back(static_cast<int64_t>(begin)); },
        part);
    return at;
  }

 private:
  void index_characters(const Characters& form) {
    for (size_t id = 0; id < form.words.size(); ++id) {
      const std::string& word = form.words[id];
      if (word.empty()) continue;
      const Utf8Step step = utf8_step(word);
      if (step.kind == Utf8Step::Kind::character && static_cast<size_t>(step.length) == word.size())
        characters_.emplace_back(packed(word), static_cast<int32_t>(id));
      by_word_.emplace_back(word, static_cast<int32_t>(id));
    }
    std::sort(characters_.begin(), characters_.end());
    std::sort(by_word_.begin(), by_word_.end());
    fallback_.fill(-1);
    if (form.byte_fallback)
      for (int b = 0; b < 256; ++b) fallback_[static_cast<size_t>(b)] = id_of_word(byte_token(b));
    // Where no merge makes a word that goes on after a space, nothing joins a word with the space
    // behind it: pieces may be cut there.
    cuts_at_marks_ = !form.scores && id_of_word(kSpaceMark) >= 0 &&
                     std::none_of(parts_.merges.begin(), parts_.merges.end(), [&](const Merge& m) {
                       return is_mark_inside(form.words[static_cast<size_t>(m.result)]);
                     });
  }

  int32_t id_of_word(std::string_view word) const {
    const auto place =
        std::lower_bound(by_word_.begin(), by_word_.end(), word,
                         [](const auto& entry, std::string_view w) { return entry.first < w; });
    return place == by_word_.end() || place->first != word ? -1 : place->second;
  }

  // How many bytes of the normalised text a token takes; a byte's token only one.
  size_t length_of(int32_t id) const {
    const size_t length = parts_.pieces[static_cast<size_t>(id)].size();
    if (!parts_.characters) return length;
    const std::string& word = parts_.characters->words[static_cast<size_t>(id)];
    return length == 1 && word.size() == byte_token(0).size() ? 1 : word.size();
  }

  // Hands out, in order, added tokens as (id, where they begin) and what is to be merged as pieces
  // of the normalised text, which live until it returns.
  template <class OnToken, class OnPiece>
  void each_part(std::string_view text, bool mapped, const OnToken& on_token,
                 const OnPiece& on_piece) const {
    std::deque<std::string> kept;
    std::deque<SourceMap> maps;
    added_.split(text, [&](std::string_view part, int32_t id) {
      const auto begin = static_cast<size_t>(part.data() - text.data());
      if (id >= 0) return on_token(id, begin);
      const SourceMap* map = mapped ? &maps.emplace_back() : nullptr;
      if (!parts_.normalizer.empty())
        part =
            kept.emplace_back(normalize(parts_.normalizer, part, mapped ? &maps.back() : nullptr));
      const char* first = part.data();
      added_late_.split(part, [&](std::string_view rest, int32_t late) {
        const auto at = static_cast<size_t>(rest.data() - first);
        if (late >= 0) return on_token(late, mapped ? begin + map->source(at) : 0);
        Piece piece{rest, map, at, begin};
        if (parts_.characters && parts_.characters->splits_at_space)
          return each_between_space(piece, begin == 0 && at == 0, kept, maps, on_piece);
        if (parts_.characters) return each_word(piece, begin == 0 && at == 0, kept, maps, on_piece);
        splitter_.split(rest, [&](std::string_view cut) {
          on_piece(Piece{cut, map, static_cast<size_t>(cut.data() - first), begin});
        });
      });
    });
  }

  template <class OnPiece>
  void each_between_space(Piece piece, bool begins_text, std::deque<std::string>& kept,
                          std::deque<SourceMap>& maps, const OnPiece& on_piece) const {
    size_t from = 0;
    const auto hand_out = [&](size_t end) {
      if (end > from)
        each_word(
            Piece{piece.text.substr(from, end - from), piece.map, piece.at + from, piece.begin},
            begins_text && from == 0, kept, maps, on_piece);
    };
    for (size_t at = 0; at < piece.text.size();) {
      const size_t length = white_space_in_front(piece.text.substr(at));
      if (length == 0) {
        ++at;
        continue;
      }
      hand_out(at);
      from = at += length;
    }
    hand_out(piece.text.size());
  }

  template <class OnPiece>
  void each_word(Piece piece, bool begins_text, std::deque<std::string>& kept,
                 std::deque<SourceMap>& maps, const OnPiece& on_piece) const {
    const std::optional<Metaspace>& metaspace = parts_.characters->metaspace;
    if (metaspace) {
      std::vector<NormalizerStep> steps = {
          {NormalizerStep::Kind::replace, " ", std::string(kSpaceMark)}};
      const bool prepend = metaspace->prepend == Metaspace::Prepend::always ||
                           (metaspace->prepend == Metaspace::Prepend::first && begins_text);
      if (prepend && !piece.text.starts_with(' ') && !piece.text.starts_with(kSpaceMark))
        steps.push_back({NormalizerStep::Kind::prepend, "", std::string(kSpaceMark)});
      SourceMap* own = piece.map ? &maps.emplace_back() : nullptr;
      const std::string& text = kept.emplace_back(normalize(steps, piece.text, own));
      if (own) {
        own->put_behind(*piece.map, piece.at);
        piece.map = own;
      }
      piece.text = text;
      piece.at = 0;
    }
    const bool everywhere = metaspace && metaspace->split;
    if (!everywhere && (!cuts_at_marks_ || parts_.ignore_merges)) return on_piece(piece);
    size_t done = 0;
    const auto cut = [&](size_t end) {
      if (end > done)
        on_piece(
            Piece{piece.text.substr(done, end - done), piece.map, piece.at + done, piece.begin});
      done = end;
    };
    for (size_t at = piece.text.find(kSpaceMark); at != std::string_view::npos;
         at = piece.text.find(kSpaceMark, at + kSpaceMark.size()))
      if (everywhere || !piece.text.substr(0, at).ends_with(kSpaceMark)) cut(at);
    cut(piece.text.size());
  }

  void encode_piece(std::string_view piece, Seen& seen, std::vector<int32_t>& ids) const {
    const bool short_one = piece.size() <= kLongestRemembered;
    if (short_one && seen.copy(piece, ids)) return;
    const size_t at = ids.size();
    if (unigram_) cut_piece(piece, ids);
    else if (const std::optional<int32_t> id = whole_token(piece)) ids.push_back(*id);
    else table_.encode(parts_.characters ? first_characters(piece) : first_bytes(piece), ids);
    if (short_one) seen.remember(piece, at, ids.size() - at);
  }

  // Characters that are no words are one unknown with those beside them, as in `tokenizers`
  // (models/unigram/model.rs).
  void cut_piece(std::string_view piece, std::vector<int32_t>& ids) const {
    std::string_view unknown;  // what goes on to the end of what was cut so far
    const auto end_unknown = [&] {
      if (!unknown.empty()) add_unknown(unknown, ids);
      unknown = {};
    };
    unigram_->cut(piece, [&](const UnigramTable::Part& part) {
      if (part.id < 0 || part.id == parts_.unk) {
        const char* begin = unknown.empty() ? part.text.data() : unknown.data();
        unknown = {begin, unknown.size() + part.text.size()};
        return;
      }
      end_unknown();
      ids.push_back(part.id);
    });
    end_unknown();
  }

  void add_unknown(std::string_view text, std::vector<int32_t>& ids) const {
    const auto looked_for = [&](int32_t id) {
      return id >= 0 && !std::isnan((*parts_.characters->scores)[static_cast<size_t>(id)]);
    };
    if (const int32_t id = id_of_word(text); looked_for(id)) return ids.push_back(id);
    const auto byte_id = [&](char b) { return fallback_[static_cast<unsigned char>(b)]; };
    if (std::all_of(text.begin(), text.end(), [&](char b) { return byte_id(b) >= 0; }))
      for (const char b : text) ids.push_back(byte_id(b));
    else if (parts_.unk) ids.push_back(*parts_.unk);
  }

  // What waits until the next known symbol, as in `tokenizers` (models/bpe/model.rs).
  void flush_unknown(int64_t& unknown, std::vector<int32_t>& first) const {
    if (parts_.unk && unknown > 0)
      first.insert(first.end(), parts_.fuse_unk ? 1 : static_cast<size_t>(unknown), *parts_.unk);
    unknown = 0;
  }

  std::vector<int32_t> first_bytes(std::string_view piece) const {
    std::vector<int32_t> first;
    first.reserve(piece.size());
    int64_t unknown = 0;
    for (const char byte : piece) {
      const int32_t id = parts_.byte_ids[static_cast<unsigned char>(byte)];
      if (id < 0) {
        ++unknown;
        continue;
      }
      flush_unknown(unknown, first);
      first.push_back(id);
    }
    flush_unknown(unknown, first);
    return first;
  }

  std::vector<int32_t> first_characters(std::string_view piece) const {
    std::vector<int32_t> first;
    first.reserve(piece.size());
    int64_t unknown = 0;
    while (!piece.empty()) {
      const Utf8Step step = utf8_step(piece);
      const std::string_view bytes = piece.substr(0, static_cast<size_t>(step.length));
      piece.remove_prefix(bytes.size());
      const int32_t id = step.kind == Utf8Step::Kind::character ? id_of_character(bytes) : -1;
      if (id >= 0) {
        flush_unknown(unknown, first);
        first.push_back(id);
      } else if (std::all_of(bytes.begin(), bytes.end(), [&](char b) {
                   return fallback_[static_cast<unsigned char>(b)] >= 0;
                 })) {
        for (const char b : bytes) first.push_back(fallback_[static_cast<unsigned char>(b)]);
      } else {
        ++unknown;
      }
    }
    flush_unknown(unknown, first);
    return first;
  }

  int32_t id_of_character(std::string_view character) const {
    const std::pair<uint32_t, int32_t> wanted{packed(character), -1};
    const auto place = std::lower_bound(characters_.begin(), characters_.end(), wanted);
    return place == characters_.end() || place->first != wanted.first ? -1 : place->second;
  }

  std::optional<int32_t> whole_token(std::string_view piece) const {
    const auto place =
        std::lower_bound(whole_.begin(), whole_.end(), piece,
                         [](const auto& entry, std::string_view p) { return entry.first < p; });
    if (place == whole_.end() || place->first != piece) return std::nullopt;
    return place->second;
  }

  BpeParts parts_;
  Splitter splitter_;
  MergeTable table_;
  std::optional<UnigramTable> unigram_;
  AddedTokens added_, added_late_;
  // sorted; empty unless merges are to be ignored
  std::vector<std::pair<std::string_view, int32_t>> whole_;
  // Of a vocabulary over characters, sorted.
  std::vector<std::pair<uint32_t, int32_t>> characters_;
  std::vector<std::pair<std::string_view, int32_t>> by_word_;
  std::array<int32_t, 256> fallback_{};  // -1 where a byte has no token
  bool cuts_at_marks_ = false;
};

}  // namespace

std::string byte_token(int byte) { return fmt::format("<0x{:02X}>", byte); }

namespace {

// -1: none.
int byte_of(std::string_view word) {
  if (word.size() == byte_token(0).size() && word.starts_with("<0x"))
    for (int b = 0; b < 256; ++b)
      if (word == byte_token(b)) return b;
  return -1;
}

}  // namespace

bool is_byte_token(std::string_view word) { return byte_of(word) >= 0; }

std::string word_bytes(std::string_view word) {
  if (const int byte = byte_of(word); byte >= 0) return std::string(1, static_cast<char>(byte));
  return normalize({{NormalizerStep::Kind::replace, std::string(kSpaceMark), " "}}, word);
}

std::unique_ptr<Tokenizer> make_bpe(BpeParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace moe
