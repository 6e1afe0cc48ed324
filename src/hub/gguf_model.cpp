#include "hub/gguf_model.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "core/error.h"
#include "hub/gguf_config.h"
#include "hub/gguf_vocab.h"
#include "tensor/quant.h"
#include "text/ggml_vocab.h"

namespace moe {
namespace {

constexpr int64_t kBlockNumbers = int64_t{1} << 22;  // of a tensor, gathered at a time

// Only what the file's own size justifies is ever allocated. A file that lacks some tensors is let through: it is refused with their names later.
void check_size(const ModelConfig& config, const Gguf& file) {
  double held = 0;
  for (const NamedTensor& tensor : file.tensors()) held += static_cast<double>(tensor.value.numel());
  const double wanted = parameter_count(config);
  constexpr double kSlack = 1 << 16;
  if (wanted > 2 * held + kSlack)
    fail("{}: its metadata describe a model of {:.0f} numbers, but its tensors hold {:.0f}; they do not belong together", file.path(), wanted, held);
}

// Rows of a tensor of the file, as the Model has them.
struct Block {
  Tensor matrix;       // [O,I]
  int64_t begin, end;  // rows of the file
  int64_t pairs;       // as FileTensor::Part has it
};

std::vector<Block> blocks_of(const FileTensor& tensor) {
  std::vector<Block> blocks;
  const auto add = [&](const Tensor& matrix, int64_t pairs) {
    const int64_t step = std::max<int64_t>(1, kBlockNumbers / matrix.cols());
    for (int64_t begin = 0; begin < matrix.rows(); begin += step) blocks.push_back({matrix, begin, std::min(begin + step, matrix.rows()), pairs});
  };
  for (const FileTensor::Part& part : tensor.parts) {
    const Param& param = *part.param;
    if (part.transpose || tensor.columns) fail("tensor \"{}\" has no rows of the model's", tensor.name);
    if (param.value.rank == 3 && part.expert < 0)
      for (int64_t e = 0; e < param.value.shape[0]; ++e) add(param.expert(e), part.pairs);
    else add(part.expert >= 0 ? param.expert(part.expert) : param.value, part.pairs);
  }
  return blocks;
}

// Which row of the Model stands in row r of the file: the inverse of tensor_map's order of pairs.
int64_t source_row(int64_t r, int64_t pairs) {
  if (pairs == 0) return r;
  const int64_t in_head = r % pairs;
  return r - in_head + (in_head % 2) * (pairs / 2) + in_head / 2;
}

// As they are, where they have the wanted type and order; else in `buffer`: rows of that type, or of f32 for the writer to convert.
Tensor gathered(const Block& block, DType wanted, std::vector<std::byte>& buffer) {
  const Tensor& from = block.matrix;
  const int64_t n = block.end - block.begin;
  if (from.dtype == wanted && block.pairs == 0) return from.slice_rows(block.begin, block.end);
  const DType dtype = from.dtype == wanted ? wanted : DType::f32;
  const int64_t bytes = bytes_of(dtype, from.cols());
  buffer.resize(static_cast<size_t>(n * bytes));
  for (int64_t r = 0; r < n; ++r) {
    const char* row = static_cast<const char*>(from.data) + source_row(block.begin + r, block.pairs) * from.row_bytes;
    if (dtype == from.dtype) std::memcpy(buffer.data() + r * bytes, row, static_cast<size_t>(bytes));
    else dequantise(reinterpret_cast<float*>(buffer.data() + r * bytes), row, from.dtype, from.cols());
  }
  return Tensor(buffer.data(), dtype, {n, from.cols()});
}

// The parts of a vector one after another, f32.
Tensor joined(const std::vector<FileTensor::Part>& parts, std::vector<std::byte>& buffer) {
  std::vector<float> numbers;
  for (const FileTensor::Part& part : parts) {
    const Tensor value = part.expert >= 0 ? part.param->value.at(part.expert) : part.param->value;
    std::vector<float> ours(static_cast<size_t>(value.cols()));
    dequantise(ours.data(), value.data, value.dtype, value.cols());
    for (int64_t i = 0; i < value.cols(); ++i) numbers.push_back(ours[static_cast<size_t>(source_row(i, part.pairs))]);
  }
  buffer.resize(numbers.size() * sizeof(float));
  std::memcpy(buffer.data(), numbers.data(), buffer.size());
  return Tensor(buffer.data(), DType::f32, {static_cast<int64_t>(numbers.size())});
}

GgufItem item_of(const FileTensor& tensor, DType dtype, const std::shared_ptr<std::vector<std::byte>>& buffer) {
  if (tensor.shape.size() == 1) return {tensor.name, dtype, tensor.shape, [parts = tensor.parts, buffer](int64_t) { return joined(parts, *buffer); }};
  const auto blocks = std::make_shared<const std::vector<Block>>(blocks_of(tensor));
  return {tensor.name, dtype, tensor.shape, [blocks, dtype, buffer](int64_t part) { return gathered(blocks->at(static_cast<size_t>(part)), dtype, *buffer); }};
}

// llama.h, enum llama_ftype; 1024 says that it was guessed.
int64_t file_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0;
    case DType::f16: return 1;
    case DType::q4_0: return 2;
    case DType::q4_1: return 3;
    case DType::q8_0: return 7;
    case DType::q5_0: return 8;
    case DType::q5_1: return 9;
    case DType::q4_k: return 15;
    case DType::q5_k: return 17;
    case DType::q6_k: return 18;
    case DType::bf16: return 32;
    default: return 1024;
  }
}

// Keys of "general." that are written anew.
bool is_ours(std::string_view key) { return key == "general.architecture" || key == "general.type"; }

}  // namespace

bool is_gguf(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && MappedFile(path).text().starts_with("GGUF");
}

ModelConfig gguf_config(const std::string& path) { return read_gguf_config(Gguf::open(path)).config; }

LoadedModel load_gguf(const std::string& path, LoadFor purpose) {
  const auto file = std::make_shared<const Gguf>(Gguf::open(path));
  const auto [config, architecture] = read_gguf_config(*file);
  check_size(config, *file);
  LoadedModel loaded;
  loaded.tokenizer = make_ggml_tokenizer(read_gguf_vocab(*file), path);
  if (loaded.tokenizer->vocab_size() > config.vocab)
    fail("{}: the tokenizer has {} tokens, but the embedding has {} rows", path, loaded.tokenizer->vocab_size(), config.vocab);
  loaded.model = std::make_unique<Model>(config, purpose == LoadFor::training ? Storage::owned : Storage::bound);
  std::vector<FileTensor> map = map_tensors(architecture->tensors, *loaded.model);
  check_account(map, *file, "the file's metadata");
  bind_tensors(map, *file, *loaded.model, purpose);
  if (purpose == LoadFor::inference) loaded.model->keep(file);
  for (const auto& [key, value] : file->metadata())
    if (const auto* text = std::get_if<std::string>(&value); text != nullptr && key.starts_with("general.") && !is_ours(key))
      loaded.metadata.emplace(key, *text);
  loaded.source = std::make_shared<const ModelSource>(ModelSource{file, std::move(map)});
  return loaded;
}

GgufTarget gguf_target(Model& model, const Tokenizer& tokenizer) {
  const ModelConfig& c = model.config();
  const GgufArchitecture& row = gguf_architecture_of(c);
  if (tokenizer.vocab_size() > c.vocab) fail("the tokenizer has {} tokens, but the model's vocabulary is {}", tokenizer.vocab_size(), c.vocab);
  GgufTarget target;
  target.metadata = gguf_config_entries(row, c);
  for (GgufEntry& entry : gguf_vocab_entries(ggml_vocab_of(tokenizer), c.vocab)) target.metadata.push_back(std::move(entry));
  for (FileTensor& tensor : map_tensors(row.tensors, model))
    if (!tensor.parts.empty() && (!tensor.alias || row.needs_head)) target.tensors.push_back(std::move(tensor));
  if (c.rope_scaling.kind == RopeScaling::Kind::llama3) {
    auto factors = std::make_shared<std::vector<float>>(llama3_factors(c.rope_scaling, c.rope_theta, c.head_width));
    const auto n = static_cast<int64_t>(factors->size());
    target.tables.push_back({"rope_freqs.weight", DType::f32, {n}, [factors, n](int64_t) { return Tensor(factors->data(), DType::f32, {n}); }});
  }
  return target;
}

bool gguf_wants_f32(const FileTensor& tensor) { return tensor.shape.size() == 1 || tensor.name.ends_with(".ffn_gate_inp.weight"); }

std::vector<GgufEntry> gguf_type_entries(const std::vector<GgufItem>& items) {
  std::map<DType, int64_t> numbers;
  for (const GgufItem& item : items) {
    int64_t n = 1;
    for (const int64_t size : item.shape) n *= size;
    numbers[item.dtype] += n;
  }
  const auto most = std::ranges::max_element(numbers, {}, [](const auto& each) { return each.second; });
  std::vector<GgufEntry> out;
  if (most != numbers.end()) out.push_back({"general.file_type", GgufEntry::Type::u32, file_type_of(most->first)});
  if (std::ranges::any_of(numbers, [](const auto& each) { return is_quantised(each.first); }))
    out.push_back({"general.quantization_version", GgufEntry::Type::u32, int64_t{2}});
  return out;
}

void save_gguf(const std::string& path, Model& model, const Tokenizer& tokenizer, const GgufTypeOf& type_of, int threads, const std::vector<GgufEntry>& also) {
  GgufTarget target = gguf_target(model, tokenizer);
  const auto buffer = std::make_shared<std::vector<std::byte>>();
  std::vector<GgufItem> items = std::move(target.tables);
  for (const FileTensor& tensor : target.tensors) items.push_back(item_of(tensor, gguf_wants_f32(tensor) ? DType::f32 : type_of(tensor), buffer));
  for (const GgufEntry& entry : gguf_type_entries(items)) target.metadata.push_back(entry);
  target.metadata.insert(target.metadata.end(), also.begin(), also.end());
  write_gguf(path, target.metadata, items, threads);
}

}  // namespace moe
