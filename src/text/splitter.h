// Pre-tokenisation: cuts a text into the pieces within which BPE merges, by one regular expression
// or several in turn.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

class Splitter {
 public:
  // Patterns as tokenizer.json writes them; each cuts the pieces that the one before left. Fails
  // with what cannot be honoured.
  explicit Splitter(const std::vector<std::string>& patterns);
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;

  // Hands out views of `text`, in order, none empty, which together are the whole of it. Matches
  // are pieces, and so is what lies between them. Bytes that are not valid UTF-8 are pieces of
  // their own, one per run, and end the text for what stands before them.
  void split(std::string_view text, const std::function<void(std::string_view)>& emit) const;

 private:
  struct Patterns;
  std::unique_ptr<Patterns> patterns_;
};

}  // namespace moe
