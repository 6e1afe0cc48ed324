#include "hub/gguf/imatrix.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/nearest.h"
#include "formats/gguf.h"
#include "hub/gguf/gguf_model.h"

namespace moe {
namespace {

constexpr const char *kImatrixType = "general.type", *kImatrixKind = "imatrix",
                     *kImatrixTexts = "imatrix.datasets", *kImatrixWindows = "imatrix.chunk_count",
                     *kImatrixWindow = "imatrix.chunk_size";
constexpr std::string_view kSumsEnding = ".in_sum2", kCountsEnding = ".counts";
constexpr int64_t kMostWindows = INT32_MAX;

bool is_importance(const Gguf& file) {
  return file.has(kImatrixType) && file.text(kImatrixType) == kImatrixKind;
}

std::vector<float> numbers_of(const Tensor& tensor, const std::string& where) {
  if (tensor.dtype != DType::f32)
    fail("{} is {}; sums and counts are f32", where, name_of(tensor.dtype));
  std::vector<float> out(static_cast<size_t>(tensor.numel()));
  std::memcpy(out.data(), tensor.data, out.size() * sizeof(float));
  for (const float x : out)
    if (!std::isfinite(x) || x < 0)
      fail("{} has a number {}; sums of squares and counts are finite and none is below zero",
           where, x);
  return out;
}

// One count may stand for all matrices.
void settle(ColumnSums& sums, int64_t matrices, const std::string& where) {
  if (sums.rows.size() == 1) sums.rows.resize(static_cast<size_t>(matrices), sums.rows[0]);
  if (std::ssize(sums.rows) != matrices || sums.squares.size() % sums.rows.size() != 0)
    fail("{}: {} sums and {} counts of {} matrices do not belong together", where,
         sums.squares.size(), sums.rows.size(), matrices);
}

// Bytes that are read one thing after another, each length checked against what is left.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  bool at_end() const { return bytes_.empty(); }
  int32_t integer(const char* what, int32_t low) {
    int32_t x = 0;
    std::memcpy(&x, take(sizeof x, what).data(), sizeof x);
    if (x < low) fail("{}: the {} is {}; it must be at least {}", where_, what, x, low);
    return x;
  }
  std::string text(const char* what) {
    const auto bytes = take(static_cast<size_t>(integer(what, 0)), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::vector<float> floats(int32_t n, const char* what) {
    const auto bytes = take(static_cast<size_t>(n) * sizeof(float), what);
    std::vector<float> out(static_cast<size_t>(n));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

 private:
  std::span<const std::byte> take(size_t n, const char* what) {
    if (n > bytes_.size())
      fail("{}: ends in the middle of the {}; it is no importance matrix, or cut off", where_,
           what);
    const auto out = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return out;
  }

  std::span<const std::byte> bytes_;
  const std::string& where_;
};

}  // namespace

Importance read_importance(const Gguf& file, const std::string& file_name) {
  if (!is_importance(file))
    fail("{} is a GGUF but holds no importance matrix (general.type \"{}\")", file_name,
         kImatrixKind);
  Importance out;
  if (file.has(kImatrixTexts)) out.texts = file.texts(kImatrixTexts);
  if (file.has(kImatrixWindows)) out.windows = file.integer(kImatrixWindows, 0, kMostWindows);
  if (file.has(kImatrixWindow)) out.window = file.integer(kImatrixWindow, 0, kMostWindows);
  for (const NamedTensor& tensor : file.tensors()) {
    const bool squares = tensor.name.ends_with(kSumsEnding),
               rows = tensor.name.ends_with(kCountsEnding);
    const std::string name =
        tensor.name.substr(0, tensor.name.size() - (squares ? kSumsEnding : kCountsEnding).size());
    const std::string where = fmt::format("{}: tensor \"{}\"", file_name, tensor.name);
    if (!squares && !rows)
      fail("{} is neither the sums ({}) nor the counts ({}) of a matrix", where, kSumsEnding,
           kCountsEnding);
    const std::string_view other = squares ? kCountsEnding : kSumsEnding;
    if (!file.contains(fmt::format("{}{}", name, other)))
      fail("{} has no \"{}{}\" beside it", where, name, other);
    if (rows) continue;
    const Tensor counts = file.get(fmt::format("{}{}", name, kCountsEnding));
    ColumnSums sums{
        numbers_of(tensor.value, where),
        numbers_of(counts, fmt::format("{}: tensor \"{}{}\"", file_name, name, kCountsEnding))};
    settle(sums, tensor.value.rank < 2 ? 1 : tensor.value.rows(), where);
    out.tensors.emplace(name, std::move(sums));
  }
  if (out.tensors.empty()) fail("{} holds the importance of no tensor", file_name);
  return out;
}

// entries, then of each: name, calls, numbers: calls times the mean squares, of a bank those of all
// experts one after another; then, in newer ones, windows and the name of the text.
Importance read_importance_dat(std::span<const std::byte> bytes, const std::string& where) {
  Reader reader(bytes, where);
  Importance out;
  const int32_t entries = reader.integer("number of entries", 1);
  for (int32_t i = 0; i < entries; ++i) {
    const std::string name = reader.text("name of an entry");
    const auto calls = static_cast<float>(reader.integer("number of calls", 1));
    const int32_t n = reader.integer("number of sums", 1);
    ColumnSums sums{reader.floats(n, "sums of an entry"), {calls}};
    for (const float x : sums.squares)
      if (!std::isfinite(x) || x < 0)
        fail("{}: the importance of \"{}\" has a number {}; none may be below zero", where,
             printable(name, 60), x);
    if (!out.tensors.emplace(name, std::move(sums)).second)
      fail("{}: the importance of \"{}\" stands there twice", where, printable(name, 60));
  }
  if (!reader.at_end()) out.windows = reader.integer("number of windows", 0);
  if (!reader.at_end()) out.texts.push_back(reader.text("name of the text"));
  return out;
}

Importance read_importance(const std::string& path) {
  if (is_gguf(path)) return read_importance(Gguf::open(path), path);
  const MappedFile file(path);
  return read_importance_dat(file.bytes(), path);
}

void check_importance_target(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  if (!is_gguf(path) || !is_importance(Gguf::open(path)))
    fail("{} is there and is no importance matrix; choose another name or delete it first", path);
}

void write_importance(const std::string& path, const Importance& importance) {
  check_importance_target(path);
  using Type = GgufEntry::Type;
  const std::vector<GgufEntry> metadata = {{kImatrixType, Type::string, std::string(kImatrixKind)},
                                           {kImatrixTexts, Type::strings, importance.texts},
                                           {kImatrixWindows, Type::u32, importance.windows},
                                           {kImatrixWindow, Type::u32, importance.window}};
  std::vector<GgufItem> items;
  for (const auto& entry : importance.tensors) {
    const std::string& name = entry.first;
    const ColumnSums& sums = entry.second;
    const auto matrices = std::ssize(sums.rows), cols = std::ssize(sums.squares) / matrices;
    const auto add = [&](std::string_view suffix, const std::vector<float>& numbers,
                         int64_t width) {
      items.push_back(
          {fmt::format("{}{}", name, suffix),
           DType::f32,
           {matrices, width},
           [&numbers, matrices, width](int64_t) {
             return Tensor(const_cast<float*>(numbers.data()), DType::f32, {matrices, width});
           }});
    };
    add(kSumsEnding, sums.squares, cols);
    add(kCountsEnding, sums.rows, 1);
  }
  write_gguf(path, metadata, items);
}

std::vector<GgufEntry> gguf_importance_entries(const Importance& importance) {
  using Type = GgufEntry::Type;
  std::vector<GgufEntry> entries = {{"quantize.imatrix.entries_count", Type::i32,
                                     static_cast<int64_t>(importance.tensors.size())}};
  if (!importance.texts.empty())
    entries.push_back({"quantize.imatrix.dataset", Type::string, importance.texts[0]});
  if (importance.windows > 0)
    entries.push_back({"quantize.imatrix.chunks_count", Type::i32, importance.windows});
  return entries;
}

}  // namespace moe
