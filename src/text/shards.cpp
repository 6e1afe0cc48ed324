#include "text/shards.h"

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"

namespace moe {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they lie on disk");

constexpr std::string_view kFormat = "moe-tokens";
constexpr int64_t kVersion = 1;
constexpr size_t kAlign = 8;
constexpr int64_t kMost = int64_t{1}
                          << 48;  // of anything that is counted: sums stay far from overflow

// The last bytes of a shard.
struct Footer {
  std::array<char, 8> magic = {'m', 'o', 'e', 't', 'o', 'k', 'n', '1'};
  uint64_t width = 0, tokens = 0, ends = 0, untrained = 0, reserved[2] = {};
  uint64_t check = 0;  // of the seven words before it

  uint64_t checked() const {
    std::array<uint64_t, 8> words;
    std::memcpy(words.data(), this, sizeof words);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i + 1 < words.size(); ++i) hash = (hash ^ words[i]) * 0x100000001b3u;
    return hash;
  }
};
static_assert(sizeof(Footer) == 64);

constexpr uint64_t padded(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Zeros behind `bytes` up to the next multiple.
void pad(AtomicFile& out, uint64_t bytes) {
  constexpr char kZeros[kAlign] = {};
  out.write(kZeros, padded(bytes) - bytes);
}

template <class T>
void write_ids(const std::vector<int32_t>& ids, std::vector<unsigned char>& out) {
  const size_t at = out.size();
  out.resize(at + ids.size() * sizeof(T));
  for (size_t i = 0; i < ids.size(); ++i) {
    const T id = static_cast<T>(ids[i]);
    std::memcpy(out.data() + at + i * sizeof(T), &id, sizeof(T));
  }
}

bool same_json(const std::string& a, const std::string& b, const std::string& where) {
  return a == b || parse_json(a, where) == parse_json(b, "the tokenizer asked for");
}

int64_t count(const JsonReader& in, const char* key) { return in.get_in<int64_t>(key, 0, kMost); }

}  // namespace

Shard read_shard(std::span<const std::byte> bytes, const std::string& where) {
  Footer footer;
  if (bytes.size() < sizeof footer)
    fail("{} has {} bytes, a shard of tokens has at least {}; it is cut off", where, bytes.size(),
         sizeof footer);
  const std::array<char, 8> magic = footer.magic;
  std::memcpy(static_cast<void*>(&footer), bytes.data() + bytes.size() - sizeof footer,
              sizeof footer);
  if (footer.magic != magic)
    fail("{} is no shard of tokens, or it is cut off; make it again with `moe tokenize`", where);
  constexpr uint64_t kLimit = std::numeric_limits<uint32_t>::max();
  const bool sane = footer.check == footer.checked() &&
                    (footer.width == 1 || footer.width == 2 || footer.width == 4) &&
                    footer.tokens <= kLimit && footer.ends <= footer.tokens &&
                    footer.untrained <= footer.tokens;
  if (!sane) fail("{}: its last bytes are damaged; make it again with `moe tokenize`", where);
  const uint64_t ids = padded(footer.tokens * footer.width), ends = footer.ends * sizeof(uint32_t),
                 spans = footer.untrained * sizeof(TokenSpan);
  const uint64_t size = ids + padded(ends + spans) + sizeof footer;
  if (size != bytes.size())
    fail("{} has {} bytes, but its contents need {}; it is damaged", where, bytes.size(), size);
  Shard shard{
      static_cast<int>(footer.width), static_cast<int64_t>(footer.tokens), bytes.data(), {}, {}};
  shard.ends = {reinterpret_cast<const uint32_t*>(bytes.data() + ids), footer.ends};
  shard.untrained = {reinterpret_cast<const TokenSpan*>(bytes.data() + ids + ends),
                     footer.untrained};
  return shard;
}

int64_t TokensIndex::tokens() const {
  int64_t sum = 0;
  for (const File& file : files) sum += file.tokens;
  return sum;
}

int64_t TokensIndex::bytes() const {
  int64_t sum = 0;
  for (const File& file : files) sum += file.bytes;
  return sum;
}

std::string to_json(const TokensIndex& index) {
  Json files = Json::array(), shards = Json::array();
  for (const TokensIndex::File& f : index.files)
    files.push_back(
        {{"path", f.path}, {"domain", f.domain}, {"tokens", f.tokens}, {"bytes", f.bytes}});
  for (const TokensIndex::Part& p : index.shards)
    shards.push_back({{"file", p.name}, {"tokens", p.tokens}});
  const Json out = {{"format", kFormat},
                    {"version", kVersion},
                    {"vocab", index.vocab},
                    {"documents", index.documents},
                    {"untrained", index.untrained},
                    {"files", files},
                    {"shards", shards}};
  // Paths may hold bytes that are not UTF-8.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

TokensIndex parse_tokens_index(std::string_view json, const std::string& where) {
  const Json parsed = parse_json(json, where);
  const JsonReader in(parsed, where);
  if (in.get<std::string>("format") != kFormat)
    fail("{}: \"format\" is not \"{}\"", where, kFormat);
  if (const auto version = in.get<int64_t>("version"); version != kVersion)
    fail(
        "{} is of version {}, this program reads version {}; make the tokens again with `moe "
        "tokenize`",
        where, version, kVersion);
  TokensIndex index;
  index.vocab = in.get_in<int64_t>("vocab", 1, int64_t{1} << 31);
  index.documents = count(in, "documents");
  index.untrained = count(in, "untrained");
  int64_t listed = 0, bytes = 0, tokens = 0;
  for (const JsonReader& f : in.objects("files")) {
    index.files.push_back({f.get<std::string>("path"), f.get<std::string>("domain"),
                           count(f, "tokens"), count(f, "bytes")});
    listed += index.files.back().tokens;
    bytes += index.files.back().bytes;
    if (listed > kMost || bytes > kMost)
      fail("{}: there cannot be so many tokens; the file is damaged", where);
  }
  for (const JsonReader& s : in.objects("shards")) {
    index.shards.push_back({s.get<std::string>("file"),
                            s.get_in<int64_t>("tokens", 0, std::numeric_limits<uint32_t>::max())});
    const std::string& name = index.shards.back().name;
    // Only what lies in the folder is opened.
    if (name.empty() || name.starts_with('.') || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      fail("{}: \"{}\" is no name of a shard", where, printable(name));
    tokens += index.shards.back().tokens;
  }
  if (tokens != listed || tokens == 0 || index.untrained > tokens || index.documents > tokens)
    fail("{}: its files hold {} tokens, its shards {}, in {} documents; it is damaged", where,
         listed, tokens, index.documents);
  return index;
}

bool holds_tokens(const std::string& folder) {
  const std::string path = folder + "/" + kTokensIndex;
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return false;
  return read_text(path, kJsonMaxBytes).find(fmt::format("\"{}\"", kFormat)) != std::string::npos;
}

TokensIndex read_tokens_index(const std::string& folder) {
  const std::string path = folder + "/" + kTokensIndex;
  return parse_tokens_index(read_text(path, kJsonMaxBytes), path);
}

void check_tokenizer(const std::string& folder, const Tokenizer& tokenizer) {
  const std::string path = folder + "/tokenizer.json";
  const std::string own = read_text(path, kJsonMaxBytes);
  if (same_json(own, tokenizer.to_json(), path)) return;
  const std::unique_ptr<Tokenizer> theirs = parse_tokenizer(own, path);
  fail(
      "{} holds tokens of another tokenizer ({}, {} entries) than this model's ({}, {} entries); "
      "make tokens for it with `moe tokenize --tokenizer`, or start a "
      "new model with @tokenizer {}",
      folder, theirs->spec(), theirs->vocab_size(), tokenizer.spec(), tokenizer.vocab_size(),
      folder);
}

std::optional<std::string> first_token_folder(const std::vector<std::string>& paths) {
  std::error_code unreadable;
  for (const std::string& path : paths)
    if (std::filesystem::is_directory(path, unreadable) && holds_tokens(path)) return path;
  return std::nullopt;
}

void pack_ids(const std::vector<int32_t>& ids, int width, std::vector<unsigned char>& out) {
  if (width == 1) write_ids<uint8_t>(ids, out);
  else if (width == 2) write_ids<uint16_t>(ids, out);
  else write_ids<int32_t>(ids, out);
}

TokensWriter::TokensWriter(std::string folder, const Tokenizer& tokenizer, int64_t shard_tokens)
    : folder_(std::move(folder)),
      tokenizer_(tokenizer),
      shard_tokens_(shard_tokens),
      width_(id_width(tokenizer.vocab_size())) {
  index_.vocab = tokenizer.vocab_size();
}

void TokensWriter::begin_file(const std::string& path, const std::string& domain) {
  if (file_.tokens > 0) index_.files.push_back(file_);
  file_ = {path, domain, 0, 0};
}

void TokensWriter::add(const EncodedRun& run) {
  const int64_t count = run.tokens();
  if (count == 0) return;
  if (out_ && tokens_ + count > std::numeric_limits<uint32_t>::max()) close_shard();
  if (!out_) {
    index_.shards.push_back({fmt::format("{:05}.tokens", index_.shards.size()), 0});
    out_ = std::make_unique<AtomicFile>(folder_ + "/" + index_.shards.back().name);
  }
  packed_.clear();
  pack_ids(run.ids, width_, packed_);
  out_->write(packed_.data(), packed_.size());
  out_->write(run.raw);
  const auto base = static_cast<uint32_t>(tokens_);
  for (const uint32_t end : run.ends) ends_.push_back(base + end);
  for (const TokenSpan& span : run.untrained) {
    untrained_.push_back({base + span.begin, base + span.end});
    index_.untrained += span.end - span.begin;
  }
  tokens_ += count;
  file_.tokens += count;
  file_.bytes += run.bytes;
  index_.documents += static_cast<int64_t>(run.ends.size());
  if (tokens_ >= shard_tokens_) close_shard();
}

void TokensWriter::close_shard() {
  pad(*out_, static_cast<uint64_t>(tokens_) * static_cast<uint64_t>(width_));
  const uint64_t ends = ends_.size() * sizeof(uint32_t),
                 spans = untrained_.size() * sizeof(TokenSpan);
  out_->write(ends_.data(), ends);
  out_->write(untrained_.data(), spans);
  pad(*out_, ends + spans);
  Footer footer;
  footer.width = static_cast<uint64_t>(width_);
  footer.tokens = static_cast<uint64_t>(tokens_);
  footer.ends = ends_.size();
  footer.untrained = untrained_.size();
  footer.check = footer.checked();
  out_->write(&footer, sizeof footer);
  out_->commit();
  out_.reset();
  index_.shards.back().tokens = tokens_;
  tokens_ = 0;
  ends_.clear();
  untrained_.clear();
}

const TokensIndex& TokensWriter::finish() {
  if (out_) close_shard();
  begin_file("", "");
  write_atomically(folder_ + "/tokenizer.json", tokenizer_.to_json());
  // A model that is made for these tokens is asked by the template that wrote their dialogues.
  if (!tokenizer_.config_json().empty())
    write_atomically(folder_ + "/tokenizer_config.json", tokenizer_.config_json());
  write_atomically(folder_ + "/" + kTokensIndex, to_json(index_));
  return index_;
}

}  // namespace moe
