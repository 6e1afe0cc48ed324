// What a tokenizer does to a text before it looks for tokens: the steps that tokenizer.json calls a
// normalizer, and where in the text each byte came from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe {

// what stands for a space in vocabularies over characters
inline constexpr std::string_view kSpaceMark = "\u2581";

struct NormalizerStep {
  enum class Kind {
    nfc,            // Unicode's composed form
    nfkc,           // the same of what is compatible
    prepend,        // puts `with` in front of what is not empty
    replace,        // each `what` becomes `with`
    squeeze,        // two and more spaces become `with`
    strip_left,     // takes white space away from the front,
    strip_right,    // from the end
    precompiled,    // the charsmap `what`, as `tokenizers` applies it
    sentencepiece,  // the charsmap `what`, then spaces, as SentencePiece treats both
  };
  Kind kind;
  std::string what, with;
  // of sentencepiece: spaces at the ends and repeated ones go; one space is put in front
  bool trims = false, prepends = false;
  bool operator==(const NormalizerStep&) const = default;
};

// Leads from a byte of the normalised text back to the byte of the text it stands for.
class SourceMap {
 public:
  struct Place {
    size_t to, from;
  };
  void add_step(std::vector<Place> places, size_t length) {
    steps_.push_back({std::move(places), length});
  }
  size_t source(size_t at) const;
  // What this leads back to begins at byte `at` of what `earlier`, which lives as long, leads back
  // from: a text's words share the map of the text.
  void put_behind(const SourceMap& earlier, size_t at) {
    earlier_ = &earlier;
    earlier_at_ = at;
  }

 private:
  struct Step {
    // ascending; between two of them bytes follow each other on both sides
    std::vector<Place> places;
    size_t length;  // of the text before the step
  };
  std::vector<Step> steps_;
  const SourceMap* earlier_ = nullptr;
  size_t earlier_at_ = 0;
};

// How many bytes the white space in front has (one character of Unicode's White_Space); 0: none.
size_t white_space_in_front(std::string_view text);

// Bytes that are not valid UTF-8 stay as they are. O(n log n) for any text. `map` may be null.
std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                      SourceMap* map = nullptr);

}  // namespace moe
