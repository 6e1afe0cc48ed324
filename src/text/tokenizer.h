// Text to token ids and back, and the tokenizer.json that Hugging Face `tokenizers` reads. Knows no
// model and no chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe {

// The tokens that mean something to whoever uses the ids.
struct SpecialIds {
  std::optional<int32_t> bos, eos;  // begins a text; ends a document
  bool add_bos = false;             // the tokenizer puts bos in front of a text
  std::vector<int32_t> ends;        // end what a model writes, besides eos
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;
  // What --tokenizer calls it, "bytes" or "bpe".
  virtual std::string spec() const = 0;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The bytes of one id; fails on an id outside the vocabulary.
  virtual std::string piece(int32_t id) const = 0;
  // The content of tokenizer.json.
  virtual std::string to_json() const = 0;
  // True when id i is byte i, so that text needs no encoding (the corpus then maps files instead of
  // copying them).
  virtual bool ids_are_bytes() const { return false; }
  // Ids that are no piece of ordinary text, such as <|endoftext|>: those looked for in a text
  // before all else, and what stands for unknown characters.
  virtual std::vector<int32_t> marks() const { return {}; }
  // Those of marks() that stand for no text of their own (transformers' special tokens): what
  // reads a text may leave them out.
  virtual std::vector<int32_t> special_marks() const { return {}; }
  // Where in `text` each token of encode(text) begins.
  virtual std::vector<int64_t> starts(std::string_view text) const;
  // encode(), behind bos where the tokenizer puts it there: what a model reads that is given a
  // text.
  std::vector<int32_t> encode_text(std::string_view text) const;

  std::optional<int32_t> bos_id() const { return special_.bos; }
  virtual std::optional<int32_t> eos_id() const { return special_.eos; }
  bool ends_text(int32_t id) const;
  const SpecialIds& special() const { return special_; }
  void set_special(SpecialIds special) { special_ = std::move(special); }

  // Bytes, not necessarily valid UTF-8.
  virtual std::string decode(std::span<const int32_t> ids) const;

  // The content of tokenizer_config.json, a JSON object, or nothing: what the ids do not depend on,
  // such as the template of dialogues (text/chat.h). Loading and saving keep it.
  const std::string& config_json() const { return config_json_; }
  void set_config_json(std::string json) { config_json_ = std::move(json); }

 private:
  std::string config_json_;
  SpecialIds special_;
};

// The token that is called so: the one whose piece it is, a mark before others (marks()), or whose
// number it is. Usage error, offering the nearest mark, where there is none, or several.
int32_t token_named(const Tokenizer&, std::string_view name);
// "bytes"; anything else is a usage error that names what there is. What needs a text or a folder
// is made by choose_tokenizer (text/bpe_train.h).
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec);
// From FOLDER/tokenizer.json, or where there is none FOLDER/tokenizer.model, with
// FOLDER/tokenizer_config.json and FOLDER/chat_template.jinja where they are; fails naming what is
// supported when it is a tokenizer that is not.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& where);

// Decodes a stream of ids and hands out whole UTF-8 characters only, so that a terminal or a web
// page never sees half of one. Bytes that can never become a character come out as U+FFFD, one per
// maximal ill-formed part.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  // What has become printable with this id; may be empty.
  std::string push(int32_t id);
  // What is left at the end: U+FFFD if a character was cut.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;  // a prefix of one character, at most 3 bytes
};

}  // namespace moe
