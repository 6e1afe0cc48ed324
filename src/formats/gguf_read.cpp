// The reader. Every length and count that the file claims is compared with the bytes that are left
// before anything is allocated for it, so a hostile file can make no more memory be taken than a
// small multiple of its own size.
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/nearest.h"
#include "formats/gguf.h"
#include "formats/gguf_types.h"

namespace moe {
namespace {

using gguf::Kind;

static_assert(std::endian::native == std::endian::little,
              "GGUF files are read as little endian, and so must be the machine");

constexpr size_t kMaxKey = (1 << 16) - 1;  // docs/gguf.md: a key is at most 65535 bytes long
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr const char* kCut = "the file is damaged or cut short";

// Bytes that a value of this kind takes at least.
constexpr uint64_t least_bytes(Kind kind) {
  switch (kind) {
    case Kind::u8:
    case Kind::i8:
    case Kind::boolean: return 1;
    case Kind::u16:
    case Kind::i16: return 2;
    case Kind::u32:
    case Kind::i32:
    case Kind::f32: return 4;
    case Kind::string:
    case Kind::u64:
    case Kind::i64:
    case Kind::f64: return 8;
    case Kind::array: return 12;
  }
  return 1;
}

// Reads forward through the bytes; `what` says in messages what was being read.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }
  const std::string& where() const { return where_; }

  template <class T>
  T number(std::string_view what) {
    need(sizeof(T), what);
    T x;
    std::memcpy(&x, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return x;
  }
  std::string string(std::string_view what, size_t longest = SIZE_MAX) {
    const uint64_t start = at_;
    const auto size = number<uint64_t>(what);
    if (size > longest)
      fail("{}: {} at offset {} claims to be {} bytes long, at most {} are allowed", where_, what,
           start, size, longest);
    need(size, what);
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
    at_ += size;
    return text;
  }
  // That `count` things of at least `each` bytes can still follow.
  void need_many(uint64_t count, uint64_t each, std::string_view what) {
    if (count > left() / each)
      fail("{}: {} at offset {} are said to be {}, but only {} bytes follow; {}", where_, what, at_,
           count, left(), kCut);
  }

 private:
  void need(uint64_t size, std::string_view what) {
    if (size > left())
      fail("{}: {} at offset {} needs {} bytes, but only {} follow; {}", where_, what, at_, size,
           left(), kCut);
  }

  std::span<const std::byte> bytes_;
  const std::string& where_;
  uint64_t at_ = 0;
};

Kind read_kind(Cursor& in, std::string_view what) {
  const uint64_t start = in.at();
  const auto kind = in.number<uint32_t>(what);
  if (kind >= gguf::kKinds)
    fail("{}: {} at offset {} has type {}, which no version of GGUF has (types are 0 to {})",
         in.where(), what, start, kind, gguf::kKinds - 1);
  return static_cast<Kind>(kind);
}

int64_t read_integer(Cursor& in, Kind kind, std::string_view what) {
  switch (kind) {
    case Kind::u8: return in.number<uint8_t>(what);
    case Kind::i8: return in.number<int8_t>(what);
    case Kind::u16: return in.number<uint16_t>(what);
    case Kind::i16: return in.number<int16_t>(what);
    case Kind::u32: return in.number<uint32_t>(what);
    case Kind::i32: return in.number<int32_t>(what);
    case Kind::i64: return in.number<int64_t>(what);
    default: break;
  }
  const uint64_t start = in.at();
  const auto x = in.number<uint64_t>(what);
  if (x > static_cast<uint64_t>(INT64_MAX))
    fail("{}: {} at offset {} is {}, more than a signed number of 64 bits holds", in.where(), what,
         start, x);
  return static_cast<int64_t>(x);
}

bool read_bool(Cursor& in, std::string_view what) {
  const uint64_t start = in.at();
  const auto x = in.number<uint8_t>(what);
  if (x > 1) fail("{}: {} at offset {} is {}, a truth value is 0 or 1", in.where(), what, start, x);
  return x == 1;
}

double read_float(Cursor& in, Kind kind, std::string_view what) {
  return kind == Kind::f32 ? static_cast<double>(in.number<float>(what)) : in.number<double>(what);
}

template <class F>
auto read_list(uint64_t count, F&& one) {
  std::vector<decltype(one())> list;
  list.reserve(count);
  for (uint64_t i = 0; i < count; ++i) list.push_back(one());
  return list;
}

GgufValue read_array(Cursor& in, std::string_view what) {
  const uint64_t start = in.at();
  const Kind kind = read_kind(in, what);
  if (kind == Kind::array)
    fail("{}: {} at offset {} is an array of arrays, which is not supported", in.where(), what,
         start);
  const auto count = in.number<uint64_t>(what);
  in.need_many(count, least_bytes(kind), fmt::format("the values of {}", what));
  switch (kind) {
    case Kind::boolean: return read_list(count, [&] { return read_bool(in, what); });
    case Kind::string: return read_list(count, [&] { return in.string(what); });
    case Kind::f32:
    case Kind::f64: return read_list(count, [&] { return read_float(in, kind, what); });
    default: return read_list(count, [&] { return read_integer(in, kind, what); });
  }
}

GgufValue read_value(Cursor& in, std::string_view what) {
  const Kind kind = read_kind(in, what);
  switch (kind) {
    case Kind::boolean: return read_bool(in, what);
    case Kind::string: return in.string(what);
    case Kind::array: return read_array(in, what);
    case Kind::f32:
    case Kind::f64: return read_float(in, kind, what);
    default: return read_integer(in, kind, what);
  }
}

// What the list says of one tensor, after its own checks.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // our order
  uint64_t begin = 0;          // in the data
  uint64_t bytes = 0;
};

TensorInfo read_entry(Cursor& in) {
  const uint64_t start = in.at();
  TensorInfo entry;
  entry.name = in.string("the name of a tensor", kMaxKey);
  const std::string what = fmt::format("tensor \"{}\"", printable(entry.name));
  const std::string where = fmt::format("{}: {}, listed at offset {}", in.where(), what, start);
  const auto rank = in.number<uint32_t>(what);
  if (rank > gguf::kMaxRank)
    fail("{}: {} dimensions, at most {} are possible", where, rank, gguf::kMaxRank);
  for (uint32_t i = 0; i < rank; ++i) entry.shape.push_back(read_integer(in, Kind::u64, what));
  std::reverse(entry.shape.begin(), entry.shape.end());
  if (rank == 0) entry.shape = {1};
  const auto type = in.number<uint32_t>(what);
  const auto dtype = gguf::dtype_of_number(type);
  if (!dtype)
    fail("{}: {} is not supported ({} are)", where, gguf::name_of_number(type), gguf::read_types());
  entry.dtype = *dtype;
  const BlockFormat block = block_of(entry.dtype);
  int64_t numbers = 1;
  for (const int64_t size : entry.shape)
    if (size < 1 || __builtin_mul_overflow(numbers, size, &numbers))
      fail("{}: shape [{}] is empty or too large", where, fmt::join(entry.shape, ", "));
  if (entry.shape.back() % block.elements != 0)
    fail("{}: rows of {} numbers are not whole blocks of {}, as {} has them", where,
         entry.shape.back(), block.elements, gguf::name_of_number(type));
  int64_t bytes = 0;
  if (__builtin_mul_overflow(numbers / block.elements, block.bytes, &bytes))
    fail("{}: shape [{}] is too large", where, fmt::join(entry.shape, ", "));
  entry.bytes = static_cast<uint64_t>(bytes);
  entry.begin = static_cast<uint64_t>(read_integer(in, Kind::u64, what));
  return entry;
}

// Sorted by place. Together the entries cover the data but for paddings shorter than the alignment:
// no byte twice, none unaccounted for.
void check_cover(std::vector<TensorInfo>& entries, uint64_t data_start, uint64_t data_size,
                 uint64_t alignment, const std::string& where) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TensorInfo& a, const TensorInfo& b) { return a.begin < b.begin; });
  uint64_t at = 0;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& entry : entries) {
    const std::string what = fmt::format("{}: tensor \"{}\" at offset {} of the data", where,
                                         printable(entry.name), entry.begin);
    if (entry.begin % alignment != 0)
      fail("{} does not begin at a multiple of the alignment {}", what, alignment);
    if (entry.begin > data_size || entry.bytes > data_size - entry.begin)
      fail("{} takes {} bytes, which do not lie within the {} bytes from offset {} to the end; {}",
           what, entry.bytes, data_size, data_start, kCut);
    if (entry.begin < at)
      fail("{} overlaps \"{}\", which ends at {}", what, printable(before->name), at);
    if (entry.begin - at >= alignment)
      fail("{}: {} bytes before it belong to no tensor", what, entry.begin - at);
    at = entry.begin + entry.bytes;
    before = &entry;
  }
  if (data_size - at >= alignment)
    fail("{}: the last {} bytes, from offset {} of the data, belong to no tensor", where,
         data_size - at, at);
}

Tensor view_of(const std::byte* from, const TensorInfo& entry) {
  auto* data = const_cast<std::byte*>(from);
  const auto& d = entry.shape;
  switch (d.size()) {
    case 1: return Tensor(data, entry.dtype, {d[0]});
    case 2: return Tensor(data, entry.dtype, {d[0], d[1]});
    case 3: return Tensor(data, entry.dtype, {d[0], d[1], d[2]});
    default: return Tensor(data, entry.dtype, {d[0], d[1], d[2], d[3]});
  }
}

// Blocks hold halves.
uintptr_t address_step(DType dtype) { return is_quantised(dtype) ? 2 : size_of(dtype); }

void check_version(uint32_t version, const std::string& where) {
  if (version == 2 || version == 3) return;
  if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3))
    fail("{}: this GGUF file is big endian; only little-endian ones are read", where);
  fail("{}: version {} of GGUF at offset 4 is not supported (2 and 3 are)", where, version);
}

uint64_t alignment_of(const Gguf& file) {
  if (!file.has(gguf::kAlignmentKey)) return gguf::kDefaultAlignment;
  const auto alignment = static_cast<uint64_t>(file.integer(gguf::kAlignmentKey, 1, kMaxAlignment));
  if (!std::has_single_bit(alignment))
    fail("{}: key \"{}\" is {}, which is no power of two", file.path(), gguf::kAlignmentKey,
         alignment);
  return alignment;
}

std::string kind_name(const GgufValue& value) {
  static constexpr const char* kNames[] = {
      "a truth value",          "an integer",         "a number",          "a text",
      "a list of truth values", "a list of integers", "a list of numbers", "a list of texts"};
  return kNames[value.index()];
}

}  // namespace

void Gguf::read(std::span<const std::byte> bytes) {
  const std::string& where = path_;
  if (bytes.size() < gguf::kMagic.size() ||
      std::memcmp(bytes.data(), gguf::kMagic.data(), gguf::kMagic.size()) != 0)
    fail("{}: this is no GGUF file (it does not begin with \"{}\")", where, gguf::kMagic);
  Cursor in(bytes, where);
  in.number<uint32_t>("the magic");
  check_version(in.number<uint32_t>("the version"), where);
  const auto tensor_count = in.number<uint64_t>("the number of tensors");
  const auto key_count = in.number<uint64_t>("the number of metadata keys");
  in.need_many(key_count, 8 + 4 + 1, "metadata keys");
  for (uint64_t i = 0; i < key_count; ++i) {
    const uint64_t start = in.at();
    std::string key = in.string("a metadata key", kMaxKey);
    const uint64_t from = in.at();
    GgufValue value = read_value(in, fmt::format("key \"{}\"", printable(key)));
    const auto [place, is_new] = metadata_.emplace(std::move(key), std::move(value));
    if (!is_new)
      fail("{}: key \"{}\" at offset {} stands twice", where, printable(place->first), start);
    stored_.emplace(
        place->first,
        std::string_view(reinterpret_cast<const char*>(bytes.data()) + from, in.at() - from));
  }
  const uint64_t alignment = alignment_of(*this);
  in.need_many(tensor_count, 8 + 4 + 4 + 8, "tensors");
  std::vector<TensorInfo> entries;
  for (uint64_t i = 0; i < tensor_count; ++i) entries.push_back(read_entry(in));

  const uint64_t padding = (alignment - in.at() % alignment) % alignment;
  if (!entries.empty() && padding > in.left())
    fail("{}: the file ends at offset {}, before the data of its tensors; {}", where, bytes.size(),
         kCut);
  const uint64_t data_start = std::min<uint64_t>(in.at() + padding, bytes.size());
  check_cover(entries, data_start, bytes.size() - data_start, alignment, where);
  for (const TensorInfo& entry : entries) {
    const std::byte* from = bytes.data() + data_start + entry.begin;
    if (reinterpret_cast<uintptr_t>(from) % address_step(entry.dtype) != 0) {
      copies_.push_back(std::make_unique_for_overwrite<std::byte[]>(entry.bytes));
      std::memcpy(copies_.back().get(), from, entry.bytes);
      from = copies_.back().get();
    }
    add(entry.name, view_of(from, entry), where);
  }
}

// The first file says how many there are; the names of the others follow from its own.
void Gguf::read_others() {
  const int64_t parts = integer(gguf::kPartsKey, 1, gguf::kMaxParts),
                part = has(gguf::kPartKey) ? integer(gguf::kPartKey, 0, parts - 1) : 0;
  if (parts == 1) return;
  const std::string ending = gguf::part_name("", part, parts);
  if (!path_.ends_with(ending))
    fail("{}: key \"{}\" says {}, and then the name must end in \"{}\"", path_, gguf::kPartsKey,
         parts, ending);
  const std::string name = path_.substr(0, path_.size() - ending.size());
  if (part != 0)
    fail("{}: this is a later one of {} files that are one; give the first, {}", path_, parts,
         gguf::part_name(name, 0, parts));
  for (int64_t i = 1; i < parts; ++i) {
    const Gguf& other = others_.emplace_back(open_one(gguf::part_name(name, i, parts)));
    const auto need = [&](std::string_view key, int64_t wanted) {
      if (other.integer(key, 0, gguf::kMaxParts) != wanted)
        fail("{}: key \"{}\" is {}, by its name {} is needed", other.path(), key,
             other.integer(key, 0, gguf::kMaxParts), wanted);
    };
    need(gguf::kPartKey, i);
    need(gguf::kPartsKey, parts);
    for (const NamedTensor& tensor : other.tensors()) add(tensor.name, tensor.value, other.path());
  }
  const auto held = static_cast<int64_t>(tensors().size());
  if (has(gguf::kPartTensorsKey) && integer(gguf::kPartTensorsKey, 0, INT64_MAX) != held)
    fail("{}: key \"{}\" is {}, but the {} files hold {} tensors", path_, gguf::kPartTensorsKey,
         integer(gguf::kPartTensorsKey, 0, INT64_MAX), parts, held);
}

Gguf Gguf::open(const std::string& path) {
  Gguf result = open_one(path);
  if (result.has(gguf::kPartsKey)) result.read_others();
  return result;
}

Gguf Gguf::open_one(const std::string& path) {
  Gguf result;
  result.path_ = path;
  result.file_ = MappedFile(path);
  result.read(result.file_.bytes());
  return result;
}

Gguf Gguf::from_bytes(std::span<const std::byte> bytes, const std::string& where) {
  Gguf result;
  result.path_ = where;
  result.read(bytes);
  return result;
}

const GgufValue& Gguf::value(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found != metadata_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [name, ignored] : metadata_) known.push_back(printable(name));
  fail("{}: key \"{}\" is missing{}", path_, printable(key), suggestion(key, known, 0));
}

template <class T>
const T& Gguf::typed(std::string_view key, const char* wanted) const {
  const GgufValue& found = value(key);
  const T* typed = std::get_if<T>(&found);
  if (typed == nullptr)
    fail("{}: key \"{}\" is {}; {} is needed", path_, printable(key), kind_name(found), wanted);
  return *typed;
}

bool Gguf::flag(std::string_view key) const { return typed<bool>(key, "a truth value"); }
const std::string& Gguf::text(std::string_view key) const {
  return typed<std::string>(key, "a text");
}
const std::vector<std::string>& Gguf::texts(std::string_view key) const {
  return typed<std::vector<std::string>>(key, "a list of texts");
}
const std::vector<int64_t>& Gguf::integers(std::string_view key) const {
  return typed<std::vector<int64_t>>(key, "a list of integers");
}
const std::vector<double>& Gguf::numbers(std::string_view key) const {
  return typed<std::vector<double>>(key, "a list of numbers");
}
const std::vector<bool>& Gguf::flags(std::string_view key) const {
  return typed<std::vector<bool>>(key, "a list of truth values");
}

std::string_view Gguf::stored(std::string_view key) const {
  value(key);  // fails where there is none
  return stored_.at(key);
}

int64_t Gguf::integer(std::string_view key, int64_t low, int64_t high) const {
  const int64_t x = typed<int64_t>(key, "an integer");
  if (x < low || x > high)
    fail("{}: key \"{}\" is {}; it must be {} to {}", path_, printable(key), x, low, high);
  return x;
}

double Gguf::number(std::string_view key) const {
  const GgufValue& found = value(key);
  if (const auto* whole = std::get_if<int64_t>(&found)) return static_cast<double>(*whole);
  const double x = typed<double>(key, "a number");
  if (!std::isfinite(x))
    fail("{}: key \"{}\" is {}, which is no finite number", path_, printable(key), x);
  return x;
}

}  // namespace moe
