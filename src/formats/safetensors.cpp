#include "formats/safetensors.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/nearest.h"

namespace moe {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little endian, and so must be the machine");

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kPrefix = 8;                 // bytes of the header's length
constexpr size_t kDataAlign = 64;
constexpr const char* kMetadataKey = "__metadata__";

struct FileDType {
  DType dtype;
  std::string_view name;
};
constexpr FileDType kFileDTypes[] = {
    {DType::f32, "F32"}, {DType::bf16, "BF16"},       {DType::f16, "F16"}, {DType::i32, "I32"},
    {DType::u8, "U8"},   {DType::f8_e4m3, "F8_E4M3"}, {DType::i8, "I8"},   {DType::i64, "I64"}};

// Those that models hold beside what is read: masks and positions of towers, scales of other
// programs' packings.
struct UnreadDType {
  std::string_view name;
  int64_t bytes;
};
constexpr UnreadDType kUnreadDTypes[] = {{"F64", 8},     {"U64", 8},     {"U32", 4},
                                         {"I16", 2},     {"U16", 2},     {"BOOL", 1},
                                         {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8}};

std::string_view file_name_of(DType dtype) {
  for (const FileDType& known : kFileDTypes)
    if (known.dtype == dtype) return known.name;
  fail("safetensors cannot hold {}", name_of(dtype));
}

// What the header says of one tensor, after its own checks: begin <= end <= size of the data, and
// end - begin is what shape and dtype need.
struct Entry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string unread = {};  // as NamedTensor has it; dtype and shape are then those of its bytes
};

// Bytes that so many numbers of `each` bytes need, or nothing when the product leaves 63 bits.
bool bytes_needed(const std::vector<int64_t>& shape, int64_t each, uint64_t& bytes) {
  int64_t n = each;
  // A zero anywhere makes the product zero, but does not excuse the other dimensions: views
  // multiply them in other orders.
  int64_t without_zeros = n;
  for (int64_t d : shape) {
    if (d < 0 || __builtin_mul_overflow(without_zeros, std::max<int64_t>(d, 1), &without_zeros))
      return false;
    n = d == 0 ? 0 : n;
  }
  bytes = n == 0 ? 0 : static_cast<uint64_t>(without_zeros);
  return true;
}

// A Tensor has four dimensions at most. Only towers for pictures have tensors with more, which no
// model of text reads: the last ones are counted as one.
constexpr size_t kHeldDimensions = 4, kMaxDimensions = 8;

// The entry's dtype by its word in the file; bytes of a number, 0 of a word that nobody knows.
int64_t read_dtype(const std::string& word, Entry& entry) {
  for (const FileDType& known : kFileDTypes)
    if (known.name == word) {
      entry.dtype = known.dtype;
      return static_cast<int64_t>(size_of(known.dtype));
    }
  entry.dtype = DType::u8;
  entry.unread = fmt::format(
      "dtype \"{}\" is not supported (F32, BF16, F16, F8_E4M3, U8, I8, I32 and I64 are)",
      printable(word, 32));
  for (const UnreadDType& other : kUnreadDTypes)
    if (other.name == word) return other.bytes;
  return 0;
}

Entry read_entry(const std::string& name, const Json& value, uint64_t data_size,
                 const std::string& where) {
  const JsonReader reader(value, fmt::format("{}: tensor \"{}\"", where, printable(name)));
  Entry entry;
  entry.name = name;
  const std::string dtype = reader.get<std::string>("dtype");
  const int64_t each = read_dtype(dtype, entry);
  if (each == 0) fail("{}: {}", reader.where(), entry.unread);
  entry.shape = reader.get<std::vector<int64_t>>("shape");
  if (entry.shape.size() > kMaxDimensions)
    fail("{}: {} dimensions, at most {} are supported", reader.where(), entry.shape.size(),
         kMaxDimensions);
  const auto offsets = reader.get<std::vector<int64_t>>("data_offsets");
  reader.refuse_unknown();
  if (offsets.size() != 2)
    fail("{}: data_offsets must be [begin, end], it has {} numbers", reader.where(),
         offsets.size());
  if (offsets[0] < 0 || offsets[1] < offsets[0] || static_cast<uint64_t>(offsets[1]) > data_size)
    fail(
        "{}: data_offsets [{}, {}] do not lie within the {} bytes of data; the file is damaged or "
        "cut short",
        reader.where(), offsets[0], offsets[1], data_size);
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  uint64_t needed = 0;
  if (!bytes_needed(entry.shape, each, needed))
    fail("{}: shape [{}] is negative or too large", reader.where(), fmt::join(entry.shape, ", "));
  if (needed != entry.end - entry.begin)
    fail("{}: {} [{}] takes {} bytes, data_offsets [{}, {}] hold {}", reader.where(), dtype,
         fmt::join(entry.shape, ", "), needed, entry.begin, entry.end, entry.end - entry.begin);
  if (!entry.unread.empty()) entry.shape = {static_cast<int64_t>(needed)};
  for (; entry.shape.size() > kHeldDimensions; entry.shape.pop_back())
    entry.shape[entry.shape.size() - 2] *= entry.shape.back();
  return entry;
}

// Sorted by place. Together the entries cover the data once: no byte twice, none unaccounted for.
void check_cover(std::vector<Entry>& entries, uint64_t data_size, const std::string& where) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  const Entry* before = nullptr;
  for (const Entry& entry : entries) {
    if (entry.begin < at)
      fail("{}: tensor \"{}\" at offset {} overlaps \"{}\", which ends at {}", where,
           printable(entry.name), entry.begin, printable(before->name), at);
    if (entry.begin > at)
      fail("{}: {} bytes at offset {} before tensor \"{}\" belong to no tensor", where,
           entry.begin - at, at, printable(entry.name));
    at = entry.end;
    before = &entry;
  }
  if (at != data_size)
    fail("{}: the last {} bytes, from offset {} of the data, belong to no tensor", where,
         data_size - at, at);
}

Tensor view_of(void* data, const Entry& entry) {
  const auto& d = entry.shape;
  switch (d.size()) {
    case 0: return Tensor(data, entry.dtype, {1});
    case 1: return Tensor(data, entry.dtype, {d[0]});
    case 2: return Tensor(data, entry.dtype, {d[0], d[1]});
    case 3: return Tensor(data, entry.dtype, {d[0], d[1], d[2]});
    default: return Tensor(data, entry.dtype, {d[0], d[1], d[2], d[3]});
  }
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}
bool exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

}  // namespace

void Safetensors::read(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.size() < kPrefix)
    fail("{}: {} bytes are too few for a safetensors file; it is damaged or cut short", where,
         bytes.size());
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), kPrefix);
  const uint64_t rest = bytes.size() - kPrefix;
  if (header_size > kMaxHeader)
    fail("{}: the header claims {} bytes, at most {} are allowed; this is no safetensors file",
         where, header_size, kMaxHeader);
  if (header_size > rest)
    fail(
        "{}: the header claims {} bytes, the file has {} after offset 8; it is damaged or cut "
        "short",
        where, header_size, rest);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kPrefix, header_size);
  if (!text.starts_with('{'))
    fail("{}: the header at offset 8 does not begin with {{; this is no safetensors file", where);
  const Json header = parse_json(text, where + ": header", kMaxHeader);
  const uint64_t data_size = rest - header_size;

  std::vector<Entry> entries;
  for (const auto& item : header.items()) {
    if (item.key() != kMetadataKey) {
      entries.push_back(read_entry(item.key(), item.value(), data_size, where));
      continue;
    }
    const JsonReader metadata(item.value(), fmt::format("{}: \"{}\"", where, kMetadataKey));
    for (const std::string& key : metadata.keys())
      metadata_.emplace(key, metadata.get<std::string>(key));
  }
  check_cover(entries, data_size, where);

  const std::byte* data = bytes.data() + kPrefix + header_size;
  for (const Entry& entry : entries) {
    const std::byte* from = data + entry.begin;
    // Only files of other writers, whose header is not padded, come here: a view needs an address
    // its dtype can be read from.
    if (reinterpret_cast<uintptr_t>(from) % size_of(entry.dtype) != 0) {
      copies_.push_back(std::make_unique_for_overwrite<std::byte[]>(
          std::max<size_t>(entry.end - entry.begin, 1)));
      if (entry.end > entry.begin) std::memcpy(copies_.back().get(), from, entry.end - entry.begin);
      from = copies_.back().get();
    }
    add({entry.name, view_of(const_cast<std::byte*>(from), entry), entry.unread}, where);
  }
}

// model.safetensors.index.json: {"metadata": {...}, "weight_map": {tensor: file}}.
void Safetensors::read_index(const std::string& folder, const std::string& index_path) {
  const Json json = read_json(index_path);
  const JsonReader index(json, index_path);
  const JsonReader map = index.object("weight_map");
  std::map<std::string, std::string> file_of;
  std::set<std::string> files;
  for (const std::string& name : map.keys()) {
    const std::string file = map.get<std::string>(name);
    // A model's index must not be able to name files outside its folder.
    if (file.empty() || file.starts_with('.') ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      fail("{}: tensor \"{}\" is said to be in \"{}\", which is no plain file name", index_path,
           printable(name), printable(file));
    file_of.emplace(name, file);
    files.insert(file);
  }
  for (const std::string& file : files) {
    const std::string path = folder + "/" + file;
    const size_t first = tensors().size();
    files_.emplace_back(path);
    read(files_.back().bytes(), path);
    for (size_t i = first; i < tensors().size(); ++i) {
      const auto found = file_of.find(tensors()[i].name);
      if (found == file_of.end())
        fail("{}: tensor \"{}\" is not listed in {}", path, printable(tensors()[i].name),
             index_path);
      if (found->second != file)
        fail("{}: tensor \"{}\" is listed in {} as part of {}", path, printable(tensors()[i].name),
             index_path, found->second);
    }
  }
  for (const auto& [name, file] : file_of)
    if (!contains(name))
      fail("{}: tensor \"{}\" is not in {}/{}", index_path, printable(name), folder, file);
}

Safetensors Safetensors::open(const std::string& path) {
  Safetensors result;
  result.path_ = path;
  if (!is_folder(path)) {
    result.files_.emplace_back(path);
    result.read(result.files_.back().bytes(), path);
    return result;
  }
  const std::string single = path + "/model.safetensors", index = single + ".index.json";
  if (exists(single)) {
    result.files_.emplace_back(single);
    result.read(result.files_.back().bytes(), single);
  } else if (exists(index)) {
    result.read_index(path, index);
  } else {
    fail("{}: there is neither model.safetensors nor model.safetensors.index.json in this folder",
         path);
  }
  return result;
}

Safetensors Safetensors::from_bytes(std::span<const std::byte> bytes, const std::string& where) {
  Safetensors result;
  result.path_ = where;
  result.read(bytes, where);
  return result;
}

namespace {

constexpr int64_t kConvertBlock = 1 << 14;  // elements converted at a time

float element_f32(const char* row, DType dtype, int64_t i) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(row)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
  return dtype == DType::bf16 ? to_f32(bf16{bits}) : f16_to_f32(bits);
}

void write_converted(AtomicFile& file, const char* row, DType from, DType to, int64_t count) {
  std::vector<char> buffer(static_cast<size_t>(std::min(count, kConvertBlock)) * size_of(to));
  for (int64_t begin = 0; begin < count; begin += kConvertBlock) {
    const int64_t n = std::min(kConvertBlock, count - begin);
    for (int64_t i = 0; i < n; ++i) {
      const float x = element_f32(row, from, begin + i);
      if (to == DType::f32) reinterpret_cast<float*>(buffer.data())[i] = x;
      else reinterpret_cast<bf16*>(buffer.data())[i] = to_bf16(x);
    }
    file.write(buffer.data(), static_cast<size_t>(n) * size_of(to));
  }
}

void write_data(AtomicFile& file, const Tensor& t, DType to) {
  if (t.numel() == 0) return;
  if (t.dense()) {
    if (t.dtype == to) file.write(t.data, static_cast<size_t>(t.bytes()));
    else write_converted(file, static_cast<const char*>(t.data), t.dtype, to, t.numel());
    return;
  }
  for (int64_t r = 0; r < t.rows(); ++r) {
    const char* row = static_cast<const char*>(t.data) + r * t.row_bytes;
    if (t.dtype == to) file.write(row, static_cast<size_t>(t.cols()) * size_of(to));
    else write_converted(file, row, t.dtype, to, t.cols());
  }
}

// `later`: their numbers come later, so that they need not be there yet.
void check_items(const std::string& path, const std::vector<SafetensorsItem>& items, bool later) {
  std::set<std::string_view> seen;
  for (const SafetensorsItem& item : items) {
    const Tensor& t = item.value;
    if (item.name == kMetadataKey)
      fail("cannot write {}: \"{}\" cannot be the name of a tensor", path, item.name);
    if (!seen.insert(item.name).second)
      fail("cannot write {}: two tensors are named \"{}\"", path, item.name);
    if (t.rank < 1 || (t.empty() && !item.produce && !later))
      fail("cannot write {}: tensor \"{}\" is absent", path, item.name);
    const bool converts =
        holds_weights(t.dtype) && (item.dtype == DType::f32 || item.dtype == DType::bf16);
    if (item.dtype != t.dtype && !converts)
      fail("cannot write {}: tensor \"{}\" is {} and cannot be written as {}", path, item.name,
           describe(t), name_of(item.dtype));
  }
}

// The JSON is put together by hand, so that metadata comes first and tensors in the order of their
// data, as readers of the format like it.
std::string make_header(const std::string& path, const std::vector<const SafetensorsItem*>& order,
                        std::map<std::string, std::string> metadata, uint64_t& data_size) {
  const auto quoted = [&](const std::string& text) {
    try {
      return Json(text).dump();
    } catch (const Json::exception&) {
      fail("cannot write {}: a name or metadata value is not valid UTF-8", path);
    }
  };
  metadata.emplace("format", "pt");
  std::string header = fmt::format("{{\"{}\":{{", kMetadataKey);
  for (const auto& [key, value] : metadata)
    header += fmt::format("{}{}:{}", header.ends_with('{') ? "" : ",", quoted(key), quoted(value));
  header += '}';
  data_size = 0;
  for (const SafetensorsItem* item : order) {
    const Tensor& t = item->value;
    const uint64_t bytes = static_cast<uint64_t>(t.numel()) * size_of(item->dtype);
    const int rank = item->number ? 0 : t.rank;
    header += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          quoted(item->name), file_name_of(item->dtype),
                          fmt::join(t.shape.begin(), t.shape.begin() + rank, ","), data_size,
                          data_size + bytes);
    data_size += bytes;
  }
  header += '}';
  header.append((kDataAlign - (kPrefix + header.size()) % kDataAlign) % kDataAlign, ' ');
  if (header.size() > kMaxHeader)
    fail(
        "cannot write {}: its header would take {} bytes, at most {} are allowed; write several "
        "files",
        path, header.size(), kMaxHeader);
  return header;
}

// In the order of their data.
std::vector<const SafetensorsItem*> ordered(const std::vector<SafetensorsItem>& items) {
  std::vector<const SafetensorsItem*> order;
  for (const SafetensorsItem& item : items) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->dtype) > size_of(b->dtype);
  });
  return order;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata) {
  check_items(path, items, false);
  const std::vector<const SafetensorsItem*> order = ordered(items);
  uint64_t data_size = 0;
  const std::string header = make_header(path, order, metadata, data_size);

  AtomicFile file(path, kPrefix + header.size() + data_size);
  const uint64_t header_size = header.size();
  file.write(&header_size, kPrefix);
  file.write(header);
  for (const SafetensorsItem* item : order) {
    const Tensor t = item->produce ? item->produce() : item->value;
    if (t.empty() || t.dtype != item->value.dtype ||
        !std::ranges::equal(std::span(t.shape).first(t.rank),
                            std::span(item->value.shape).first(item->value.rank)))
      fail("cannot write {}: tensor \"{}\" was announced as {} and came as {}", path, item->name,
           describe(item->value), describe(t));
    write_data(file, t, item->dtype);
  }
  file.commit();
}

void produce_in_order(const std::vector<SafetensorsItem>& items) {
  for (const SafetensorsItem* item : ordered(items))
    if (item->produce) item->produce();
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<SafetensorsItem>& items,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path) {
  check_items(path, items, true);
  const std::vector<const SafetensorsItem*> order = ordered(items);
  const std::string header = make_header(path, order, metadata, missing_);
  file_ = std::make_unique<AtomicFile>(path, kPrefix + header.size() + missing_);
  const uint64_t header_size = header.size();
  file_->write(&header_size, kPrefix);
  file_->write(header);
  uint64_t offset = kPrefix + header.size();
  for (const SafetensorsItem* item : order) {
    if (item->dtype != item->value.dtype)
      fail("cannot write {}: tensor \"{}\" comes in parts, which are not converted to {}", path,
           item->name, name_of(item->dtype));
    places_.emplace(item->name, Place{offset, item->value});
    offset += static_cast<uint64_t>(item->value.bytes());
  }
}

void SafetensorsWriter::put(std::string_view name, int64_t first, Tensor part) {
  const auto found = places_.find(name);
  if (found == places_.end()) fail("cannot write {}: tensor \"{}\" was not announced", path_, name);
  const auto& [offset, whole] = found->second;
  if (part.dtype != whole.dtype || !part.dense() || first < 0 ||
      first + part.numel() > whole.numel())
    fail("cannot write {}: {} from number {} on is no part of tensor \"{}\", {}", path_,
         describe(part), first, name, describe(whole));
  file_->write_at(offset + static_cast<uint64_t>(first) * size_of(whole.dtype), part.data,
                  static_cast<size_t>(part.bytes()));
  missing_ -= std::min(missing_, static_cast<uint64_t>(part.bytes()));
}

void SafetensorsWriter::commit() {
  if (missing_ != 0)
    fail("cannot write {}: {} bytes of its tensors were never given", path_, missing_);
  file_->commit();
}

}  // namespace moe
