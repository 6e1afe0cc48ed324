// The writer: header and list of tensors at once, then each tensor's parts as they are produced,
// quantised in blocks of rows.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"
#include "core/threads.h"
#include "formats/gguf.h"
#include "formats/gguf_types.h"
#include "tensor/quant.h"

namespace moe {
namespace {

using gguf::Kind;

static_assert(std::endian::native == std::endian::little,
              "GGUF files are written as little endian, and so must be the machine");

constexpr uint64_t kAlign = gguf::kDefaultAlignment;
constexpr int64_t kBlockBytes = int64_t{8} << 20;  // of f32, quantised and written at a time

constexpr uint64_t padded(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

template <class T>
void put(std::string& out, T x) {
  out.append(reinterpret_cast<const char*>(&x), sizeof x);
}
void put(std::string& out, std::string_view text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}
void put(std::string& out, Kind kind) { put(out, static_cast<uint32_t>(kind)); }

// Writes the values of one key; each fails where the value is of another kind than the entry's
// type, or does not fit it.
class ValueWriter {
 public:
  ValueWriter(std::string& out, const GgufEntry& entry, const std::string& path)
      : out_(out), entry_(entry), path_(path) {}

  void write() {
    using Type = GgufEntry::Type;
    switch (entry_.type) {
      case Type::boolean:
        return scalar<bool>(Kind::boolean, [&](bool x) { put(out_, static_cast<uint8_t>(x)); });
      case Type::string:
        return scalar<std::string>(Kind::string,
                                   [&](const std::string& x) { put(out_, std::string_view(x)); });
      case Type::f32:
        return scalar<double>(Kind::f32, [&](double x) { put(out_, static_cast<float>(x)); });
      case Type::u16:
        return scalar<int64_t>(Kind::u16, [&](int64_t x) { put(out_, whole<uint16_t>(x)); });
      case Type::u32:
        return scalar<int64_t>(Kind::u32, [&](int64_t x) { put(out_, whole<uint32_t>(x)); });
      case Type::i32:
        return scalar<int64_t>(Kind::i32, [&](int64_t x) { put(out_, whole<int32_t>(x)); });
      case Type::u64:
        return scalar<int64_t>(Kind::u64, [&](int64_t x) { put(out_, whole<uint64_t>(x)); });
      case Type::strings:
        return list<std::string>(Kind::string,
                                 [&](const std::string& x) { put(out_, std::string_view(x)); });
      case Type::f32s:
        return list<double>(Kind::f32, [&](double x) { put(out_, static_cast<float>(x)); });
      case Type::i32s:
        return list<int64_t>(Kind::i32, [&](int64_t x) { put(out_, whole<int32_t>(x)); });
      case Type::u32s:
        return list<int64_t>(Kind::u32, [&](int64_t x) { put(out_, whole<uint32_t>(x)); });
      case Type::u8s:
        return list<int64_t>(Kind::u8, [&](int64_t x) { put(out_, whole<uint8_t>(x)); });
      case Type::booleans:
        return list<bool>(Kind::boolean, [&](bool x) { put(out_, static_cast<uint8_t>(x)); });
      case Type::as_stored: out_ += value<std::string>(); return;
    }
  }

 private:
  template <class T>
  const T& value() {
    const T* value = std::get_if<T>(&entry_.value);
    if (value == nullptr)
      fail("cannot write {}: key \"{}\" was given a value of another type than it is to have",
           path_, entry_.key);
    return *value;
  }
  template <class T, class F>
  void scalar(Kind kind, F&& one) {
    put(out_, kind);
    one(value<T>());
  }
  template <class T, class F>
  void list(Kind kind, F&& one) {
    const auto& values = value<std::vector<T>>();
    put(out_, Kind::array);
    put(out_, kind);
    put(out_, static_cast<uint64_t>(values.size()));
    for (const auto& x : values) one(x);
  }
  template <class T>
  T whole(int64_t x) {
    if (!std::in_range<T>(x))
      fail("cannot write {}: key \"{}\" holds {}, which does not fit its type", path_, entry_.key,
           x);
    return static_cast<T>(x);
  }

  std::string& out_;
  const GgufEntry& entry_;
  const std::string& path_;
};

int64_t rows_of(const GgufItem& item) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < item.shape.size(); ++i) rows *= item.shape[i];
  return rows;
}
uint64_t bytes_of(const GgufItem& item) {
  return static_cast<uint64_t>(rows_of(item) * bytes_of(item.dtype, item.shape.back()));
}

void check_items(const std::string& path, const std::vector<GgufItem>& items) {
  std::set<std::string_view> names;
  for (const GgufItem& item : items) {
    if (!names.insert(item.name).second)
      fail("cannot write {}: tensor \"{}\" is given twice", path, item.name);
    const bool has_shape = !item.shape.empty() && item.shape.size() <= gguf::kMaxRank &&
                           std::ranges::all_of(item.shape, [](int64_t d) { return d > 0; });
    if (!has_shape)
      fail("cannot write {}: tensor \"{}\" has no shape that GGUF can say", path, item.name);
    if (item.shape.back() % block_of(item.dtype).elements != 0)
      fail(
          "cannot write {}: tensor \"{}\" has rows of {} numbers, which are not whole blocks of "
          "{}, as {} has them; choose another type for it",
          path, item.name, item.shape.back(), block_of(item.dtype).elements, name_of(item.dtype));
  }
}

std::string make_header(const std::string& path, const std::vector<GgufEntry>& metadata,
                        const std::vector<GgufItem>& items) {
  std::string out(gguf::kMagic);
  put(out, gguf::kVersion);
  put(out, static_cast<uint64_t>(items.size()));
  put(out, static_cast<uint64_t>(metadata.size()));
  std::set<std::string_view> keys;
  for (const GgufEntry& entry : metadata) {
    if (!keys.insert(entry.key).second || entry.key == gguf::kAlignmentKey)
      fail("cannot write {}: key \"{}\" is given twice", path, entry.key);
    put(out, std::string_view(entry.key));
    ValueWriter(out, entry, path).write();
  }
  uint64_t offset = 0;
  for (const GgufItem& item : items) {
    put(out, std::string_view(item.name));
    put(out, static_cast<uint32_t>(item.shape.size()));
    for (auto size = item.shape.rbegin(); size != item.shape.rend(); ++size)
      put(out, static_cast<uint64_t>(*size));
    put(out, gguf::number_of(item.dtype));
    put(out, offset);
    offset += padded(bytes_of(item));
  }
  out.append(padded(out.size()) - out.size(), '\0');
  return out;
}

// A block of rows in the file's type.
class Rows {
 public:
  Rows(const std::string& path, const GgufItem& item, AtomicFile& file, int threads)
      : path_(path), item_(item), file_(file), threads_(threads) {}

  void write(const Tensor& part) {
    const int64_t bytes = moe::bytes_of(item_.dtype, part.cols());
    if (part.dtype == item_.dtype) {
      if (part.dense()) return file_.write(part.data, static_cast<size_t>(part.bytes()));
      for (int64_t r = 0; r < part.rows(); ++r)
        file_.write(part.slice_rows(r, r + 1).data, static_cast<size_t>(bytes));
      return;
    }
    const int64_t step = std::max<int64_t>(1, kBlockBytes / (part.cols() * 4));
    for (int64_t begin = 0; begin < part.rows(); begin += step) {
      const int64_t n = std::min(step, part.rows() - begin);
      buffer_.resize(static_cast<size_t>(n * bytes));
      lost_.assign(static_cast<size_t>(n), 0);
      parallel_for(threads_, n, 1, [&](int64_t from, int64_t to, int) {
        for (int64_t r = from; r < to; ++r)
          convert(buffer_.data() + r * bytes, part.row<float>(begin + r), part.cols(),
                  lost_[static_cast<size_t>(r)]);
      });
      if (std::ranges::find(lost_, 1) != lost_.end())
        fail(
            "cannot write {}: tensor \"{}\" holds a number that is not finite, or that {} is too "
            "small for; choose another type for it",
            path_, item_.name, name_of(item_.dtype));
      file_.write(buffer_.data(), buffer_.size());
    }
  }

 private:
  // lost = 1 where a number would not survive.
  void convert(std::byte* out, const float* in, int64_t n, char& lost) const {
    const float largest = item_.dtype == DType::f16 || is_quantised(item_.dtype)
                              ? 65504.0f
                              : 3.38953139e38f;  // block scales are halves; bf16's largest
    for (int64_t i = 0; i < n; ++i)
      if (!(std::fabs(in[i]) <= largest)) lost = 1;
    if (!lost) quantise(out, in, item_.dtype, n);
  }

  const std::string& path_;
  const GgufItem& item_;
  AtomicFile& file_;
  int threads_;
  std::vector<std::byte> buffer_;
  std::vector<char> lost_;
};

void write_item(const std::string& path, const GgufItem& item, AtomicFile& file, int threads) {
  Rows rows(path, item, file, threads);
  const int64_t wanted = rows_of(item);
  int64_t done = 0;
  for (int64_t part = 0; done < wanted; ++part) {
    const Tensor t = item.produce(part);
    if (t.empty() || t.cols() != item.shape.back() ||
        (t.dtype != DType::f32 && t.dtype != item.dtype) || t.rows() < 1 ||
        t.rows() > wanted - done)
      fail("cannot write {}: tensor \"{}\" needs {} more rows of {} numbers and came as {}", path,
           item.name, wanted - done, item.shape.back(), describe(t));
    rows.write(t);
    done += t.rows();
  }
}

void remove_durably(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::filesystem::remove(path, error);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

}  // namespace

void write_gguf(const std::string& path, const std::vector<GgufEntry>& metadata,
                const std::vector<GgufItem>& items, int threads) {
  write_gguf(std::vector<GgufPart>{{path, 0, items.size()}}, metadata, items, threads);
}

std::vector<GgufPart> gguf_parts(const std::string& path, const std::vector<GgufItem>& items,
                                 int64_t most) {
  constexpr std::string_view kEnding = ".gguf";
  std::vector<GgufPart> parts = {{path, 0, 0}};
  uint64_t held = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const uint64_t bytes = padded(bytes_of(items[i]));
    if (most > 0 && held > 0 && held + bytes > static_cast<uint64_t>(most)) {
      parts.push_back({path, i, i});
      held = 0;
    }
    held += bytes;
    parts.back().end = i + 1;
  }
  if (parts.size() == 1) return parts;
  const auto count = static_cast<int64_t>(parts.size());
  if (count > gguf::kMaxParts) fail("{} would be {} files; let each hold more", path, count);
  const std::string name =
      path.ends_with(kEnding) ? path.substr(0, path.size() - kEnding.size()) : path;
  for (int64_t i = 0; i < count; ++i)
    parts[static_cast<size_t>(i)].path = gguf::part_name(name, i, count);
  return parts;
}

void write_gguf(const std::vector<GgufPart>& parts, std::vector<GgufEntry> metadata,
                const std::vector<GgufItem>& items, int threads) {
  using Type = GgufEntry::Type;
  check_items(parts[0].path, items);
  std::vector<std::unique_ptr<AtomicFile>> files;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto& [path, begin, end] = parts[p];
    const std::vector<GgufItem> own(items.begin() + static_cast<std::ptrdiff_t>(begin),
                                    items.begin() + static_cast<std::ptrdiff_t>(end));
    if (parts.size() > 1) {
      if (p > 0) metadata.clear();  // the first holds what is said of the model
      metadata.push_back({std::string(gguf::kPartKey), Type::u16, static_cast<int64_t>(p)});
      metadata.push_back(
          {std::string(gguf::kPartsKey), Type::u16, static_cast<int64_t>(parts.size())});
      metadata.push_back(
          {std::string(gguf::kPartTensorsKey), Type::i32, static_cast<int64_t>(items.size())});
    }
    const std::string header = make_header(path, metadata, own);
    uint64_t size = header.size();
    for (const GgufItem& item : own) size += padded(bytes_of(item));
    AtomicFile& file = *files.emplace_back(std::make_unique<AtomicFile>(path, size));
    file.write(header);
    constexpr char kZeros[kAlign] = {};
    for (const GgufItem& item : own) {
      write_item(path, item, file, threads);
      file.write(kZeros, padded(bytes_of(item)) - bytes_of(item));
    }
  }
  // An earlier first file would open as a model with others than its own.
  if (parts.size() > 1) remove_durably(parts[0].path);
  for (auto file = files.rbegin(); file != files.rend(); ++file) (*file)->commit();
}

}  // namespace moe
