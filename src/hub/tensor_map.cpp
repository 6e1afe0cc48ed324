// The walk over a model's parameters that makes the map, and the two directions of every layout.
#include "hub/tensor_map.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <type_traits>

#include "core/error.h"
#include "core/nearest.h"
#include "core/words.h"
#include "hub/spread.h"
#include "hub/tensor_layout.h"
#include "model/adapters.h"
#include "tensor/quant.h"

namespace moe {
namespace {

// A piece's matrices as they lie in the file: `count` of [rows, cols], `row_bytes` from row to row.
// A vector that is permuted has a number in each row.
struct Source {
  const char* data = nullptr;
  DType dtype = DType::f32;
  int64_t count = 1, rows = 1, cols = 0, row_bytes = 0;

  const char* row(int64_t matrix, int64_t r) const {
    return data + (matrix * rows + r) * row_bytes;
  }
  bool dense() const { return row_bytes == bytes_of(dtype, cols); }
};

// Count, rows and columns of a piece's matrices as the Model has them.
Source source_shape(const FileTensor::Piece& piece) {
  const Tensor t = piece.param->whole();
  Source shape{.count = t.rank == 3 && piece.expert < 0 ? t.shape[0] : 1,
               .rows = t.rank >= 2 ? t.shape[t.rank - 2] : 1,
               .cols = t.cols()};
  const bool of_vectors = t.rank == 2 && piece.expert >= 0;
  if (of_vectors) shape.rows = 1;
  if (piece.heads > 0) {
    shape.rows /= piece.heads;
    shape.count = piece.heads;
  }
  if (piece.rows.count > 0) shape.rows = piece.rows.count;
  if ((t.rank == 1 || of_vectors) && !piece.order.as_in_model()) std::swap(shape.rows, shape.cols);
  return shape;
}

// Numbers before those of a piece's expert; heads apart are counted from there.
int64_t first_of(const FileTensor& tensor, const FileTensor::Piece& piece) {
  const bool alone = tensor.pieces.front().expert == tensor.pieces.back().expert;
  if (piece.expert < 0 || alone) return 0;
  int64_t numbers = piece.expert;
  for (size_t i = 1; i < tensor.shape.size(); ++i) numbers *= tensor.shape[i];
  return numbers;
}

// Columns of the file's row of which a transposed piece's `cols` are some.
int64_t file_cols(const FileTensor::Piece& piece, int64_t cols) {
  const RowOrder& order = piece.order;
  return piece.transpose && order.apart > 0 ? cols / order.head * order.apart : cols;
}

// Calls f(piece, source) for the pieces of a tensor in turn.
template <class F>
void each_source(const FileTensor& tensor, const Tensor& file, F&& f) {
  int64_t at = 0;  // numbers before the piece; columns where pieces stand side by side
  for (const FileTensor::Piece& piece : tensor.pieces) {
    Source from = source_shape(piece);
    if (piece.transpose) std::swap(from.rows, from.cols);
    from.dtype = file.dtype;
    const bool apart = piece.order.apart > 0;
    from.data = static_cast<const char*>(file.data) +
                bytes_of(file.dtype, apart ? first_of(tensor, piece) : at);
    from.row_bytes =
        tensor.columns ? file.row_bytes : bytes_of(file.dtype, file_cols(piece, from.cols));
    at += tensor.columns ? from.cols : from.count * from.rows * from.cols;
    f(piece, from);
  }
}

// Whether the piece is of no expert that lies elsewhere.
bool is_here(const FileTensor::Piece& piece) {
  const Param& param = *piece.param;
  if (!param.is_share() || piece.expert < 0) return true;
  const int64_t first = param.share.first;
  return piece.expert >= first && piece.expert < first + param.value.shape[0];
}

// Of a piece of the file what is of the experts that are here; none where `count` is 0.
Source part_here(const FileTensor::Piece& piece, Source from) {
  const Param& param = *piece.param;
  if (!param.is_share()) return from;
  if (piece.expert >= 0) {
    if (!is_here(piece)) from.count = 0;
    return from;
  }
  const int64_t first = param.share.first, here = param.value.shape[0];
  // a bank of matrices, or of vectors, each a row
  const bool of_matrices = param.value.rank == 3;
  from.data += first * (of_matrices ? from.rows : 1) * from.row_bytes;
  (of_matrices ? from.count : from.rows) = here;
  return from;
}

void to_floats(float* out, const void* in, DType dtype, int64_t n) {
  switch (dtype) {
    case DType::f32: std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float)); return;
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) out[i] = to_f32(static_cast<const bf16*>(in)[i]);
      return;
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(static_cast<const uint16_t*>(in)[i]);
      return;
    case DType::i64:  // of tables
      for (int64_t i = 0; i < n; ++i)
        out[i] = static_cast<float>(static_cast<const int64_t*>(in)[i]);
      return;
    default: dequantise(out, in, dtype, n);
  }
}

// to [cols,rows] = from [rows,cols] transposed; row r goes to column `order` says, column c comes
// from that of `from_order`.
template <class T>
void transpose(T* to, const T* from, int64_t rows, int64_t cols, int64_t to_stride,
               const RowOrder& order = {}, int64_t from_stride = 0,
               const RowOrder& from_order = {}) {
  constexpr int64_t kBlock = 32;  // both sides of a block stay in L1
  if (from_stride == 0) from_stride = cols;
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (int64_t c0 = 0; c0 < cols; c0 += kBlock)
      for (int64_t c = c0; c < std::min(c0 + kBlock, cols); ++c)
        for (int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r)
          to[c * to_stride + order.file_row(r)] = from[r * from_stride + from_order.file_row(c)];
}

constexpr int64_t kRowsAtOnce = 32;

// Parts of a row, `head` long each, in another order, or the numbers of each part.
template <class T, class F>
void reorder(std::span<T> row, const RowOrder& order, F&& place) {
  if (order.as_in_model()) return;
  const std::vector<T> before(row.begin(), row.end());
  const int64_t step = order.turning > 0 ? 1 : order.head;
  for (int64_t i = 0; i < std::ssize(row); i += step)
    std::copy_n(before.begin() + i, step, row.begin() + place(i));
}

// A piece's numbers in the Model's order, dense in `to`. T: f32, whatever the file's dtype, or a
// type of the size of the file's numbers, which stay as they are.
template <class T>
void read_piece(T* to, const FileTensor::Piece& piece, const Source& from) {
  const int64_t width = file_cols(piece, from.cols);
  const auto convert = [&](T* out, const char* in) {
    if constexpr (std::is_same_v<T, float>) {
      to_floats(out, in, from.dtype, width);
      from_file({out, static_cast<size_t>(width)}, piece);
    } else std::memcpy(out, in, static_cast<size_t>(width) * sizeof(T));
  };
  std::vector<T> strip(static_cast<size_t>(piece.transpose ? kRowsAtOnce * width : 0));
  for (int64_t m = 0; m < from.count; ++m, to += from.rows * from.cols) {
    if (!piece.transpose) {
      for (int64_t r = 0; r < from.rows; ++r) {
        convert(to + r * from.cols, from.row(m, piece.order.file_row(r)));
        reorder(std::span(to + r * from.cols, static_cast<size_t>(from.cols)), piece.columns,
                [&](int64_t at) { return piece.columns.model_row(at); });
      }
      continue;
    }
    for (int64_t r0 = 0; r0 < from.rows; r0 += kRowsAtOnce) {
      const int64_t n = std::min(kRowsAtOnce, from.rows - r0);
      for (int64_t r = 0; r < n; ++r) convert(strip.data() + r * width, from.row(m, r0 + r));
      transpose(to + r0, strip.data(), n, from.cols, from.rows, {}, width, piece.order);
    }
  }
}

// The tensor as the file has it, f32, in `buffer`.
Tensor gathered(const FileTensor& tensor, std::vector<float>& buffer) {
  int64_t numbers = 1;
  for (const int64_t n : tensor.shape) numbers *= n;
  buffer.resize(static_cast<size_t>(numbers));
  const Tensor file(buffer.data(), DType::f32,
                    {numbers / tensor.shape.back(), tensor.shape.back()});
  std::vector<float> rows;
  each_source(tensor, file, [&](const FileTensor::Piece& piece, const Source& to) {
    for (int64_t m = 0; m < to.count; ++m) {
      const Tensor from = matrix_of(piece, m);
      rows.resize(static_cast<size_t>(to.rows * to.cols));
      for (int64_t r = 0; r < from.rows(); ++r) {
        float* row = rows.data() + r * from.cols();
        to_floats(row, static_cast<const char*>(from.data) + r * from.row_bytes, from.dtype,
                  from.cols());
        adapt_row({row, static_cast<size_t>(from.cols())}, piece, m, r);
      }
      to_file(rows, piece);
      const auto place = [&](int64_t r) {
        return reinterpret_cast<float*>(const_cast<char*>(to.row(m, r)));
      };
      if (piece.transpose) {
        transpose(place(0), rows.data(), to.cols, to.rows,
                  to.row_bytes / static_cast<int64_t>(sizeof(float)), piece.order);
        continue;
      }
      for (int64_t r = 0; r < to.rows; ++r) {
        columns_to_file({rows.data() + r * to.cols, static_cast<size_t>(to.cols)}, piece);
        std::copy_n(rows.data() + r * to.cols, to.cols, place(piece.order.file_row(r)));
      }
    }
  });
  return Tensor(buffer.data(), DType::f32, {numbers});
}

Tensor shaped(Tensor t, const std::vector<int64_t>& shape) {
  switch (shape.size()) {
    case 1: return t.reshape({shape[0]});
    case 2: return t.reshape({shape[0], shape[1]});
    case 4: return t.reshape({shape[0], shape[1], shape[2], shape[3]});
    default: return t.reshape({shape[0], shape[1], shape[2]});
  }
}

// ggml does not tell [1,1,H,1] from [H,1], and what rewrites a file leaves such ones out.
std::span<const int64_t> without_leading_ones(std::span<const int64_t> shape) {
  while (shape.size() > 1 && shape.front() == 1) shape = shape.subspan(1);
  return shape;
}

void check_shape(const FileTensor& want, const Tensor& got, const std::string& path,
                 std::string_view asker) {
  const bool of_table = want.pieces[0].param->kind == ParamKind::table;
  if (!holds_weights(got.dtype) && !(of_table && got.dtype == DType::i64))
    fail("{}: tensor \"{}\" is {}; weights must be f32, bf16 or f16", path, want.name,
         describe(got));
  std::vector<int64_t> shape = shape_of(got);
  if (std::ranges::equal(without_leading_ones(shape), without_leading_ones(want.shape))) return;
  std::string hint;
  if (shape.size() >= 2 && shape.size() == want.shape.size()) {
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    if (shape == want.shape) hint = "; it looks transposed";
  }
  fail("{}: tensor \"{}\" is {}, {} asks for [{}]{}", path, want.name, describe(got), asker,
       fmt::join(want.shape, ", "), hint);
}

void check_alias(const FileTensor& alias, const NamedTensors& file) {
  const Tensor& truth = alias.pieces[0].param->value;
  const Tensor other = file.get(alias.name);
  const auto cols = static_cast<size_t>(truth.cols());
  std::vector<float> a(cols), b(cols);
  const auto row = [&](std::vector<float>& out, const Tensor& t, int64_t r) {
    to_floats(out.data(), static_cast<const char*>(t.data) + r * t.row_bytes, t.dtype, t.cols());
  };
  for (int64_t r = 0; r < truth.rows(); ++r) {
    row(a, truth, r);
    row(b, other, r);
    if (std::memcmp(a.data(), b.data(), cols * sizeof(float)) != 0)
      fail(
          "{}: \"{}\" differs from the embedding, though config.json says \"tie_word_embeddings\": "
          "true",
          file.path(), alias.name);
  }
}

void check_aliases(const std::vector<FileTensor>& map, const NamedTensors& file) {
  for (const FileTensor& tensor : map)
    if (tensor.alias && !tensor.pieces.empty() && file.contains(tensor.name))
      check_alias(tensor, file);
}

// Fills the parameters of a model that owns its memory.
void read_tensors(const std::vector<FileTensor>& map, const NamedTensors& file) {
  for (const FileTensor& tensor : map) {
    if (tensor.alias || !is_taken_here(tensor)) continue;
    each_source(tensor, file.get(tensor.name),
                [&](const FileTensor::Piece& piece, const Source& whole) {
                  const Param& param = *piece.param;
                  const Source from = part_here(piece, whole);
                  if (from.count == 0) return;
                  const int64_t expert = piece.expert - param.share.first;
                  const Tensor to = piece.expert < 0 ? numbers_of(piece) : param.value.at(expert);
                  read_piece(to.as<float>(), piece, from);
                });
  }
}

struct BoundPiece {
  FileTensor::Piece piece;
  Source from;
};

// A copy in the order of the Model, of f32 or in the file's own dtype.
Tensor copied(Model& model, const Param& param, const std::vector<BoundPiece>& pieces,
              DType dtype) {
  const Tensor value = model.allocate_like(param.value, dtype);
  auto* to = static_cast<char*>(value.data);
  for (const auto& [piece, from] : pieces) {
    if (dtype == DType::f32) read_piece(reinterpret_cast<float*>(to), piece, from);
    else if (piece.transpose || piece.columns.turning > 0)
      read_piece(reinterpret_cast<uint16_t*>(to), piece, from);
    else {  // whole rows, so that blocks stay as they are
      const Source bytes{.data = from.data,
                         .count = from.count,
                         .rows = from.rows,
                         .cols = bytes_of(dtype, from.cols),
                         .row_bytes = from.row_bytes};
      FileTensor::Piece of_bytes = piece;
      of_bytes.columns.head = bytes_of(dtype, piece.columns.head);
      read_piece(to, of_bytes, bytes);
    }
    to += bytes_of(dtype, from.count * from.rows * from.cols);
  }
  return value;
}

// A sketch, which is multiplied in its own type, of a file that has it in another.
Tensor sketched(Model& model, const Param& param, const std::vector<BoundPiece>& pieces) {
  std::vector<float> wide(static_cast<size_t>(param.value.numel()));
  float* to = wide.data();
  for (const auto& [piece, from] : pieces) {
    read_piece(to, piece, from);
    to += from.count * from.rows * from.cols;
  }
  const DType dtype = sketch_type(model.config(), param);
  const Tensor value = model.allocate_like(param.value, dtype);
  quantise(value.data, wide.data(), dtype, value.numel());
  return value;
}

void bind_param(Model& model, Param& param, const std::vector<BoundPiece>& pieces) {
  const DType dtype = pieces[0].from.dtype;
  bool alike = true, as_it_is = true, transposed = false, cut = false;
  for (const auto& [piece, from] : pieces) {
    alike = alike && from.dtype == dtype;
    as_it_is = as_it_is && !piece.transpose && piece.order.as_in_model() && from.dense() &&
               piece.keeps_numbers() && piece.columns.as_in_model();
    alike = alike && piece.factor == 1;
    cut = cut || piece.columns.head % block_of(dtype).elements != 0 ||
          (piece.columns.turning > 0 && is_quantised(dtype));
    transposed = transposed || piece.transpose;
  }
  const bool in_own_type = is_sketch(param) && dtype == sketch_type(model.config(), param);
  if (is_sketch(param) && !in_own_type && param.value.cols() % kSketchBlock == 0)
    return model.bind(param, sketched(model, param, pieces));
  if (!(is_large(param) || in_own_type) || !alike || cut || (transposed && is_quantised(dtype))) {
    model.bind(param, copied(model, param, pieces, DType::f32));
    return;
  }
  if (!as_it_is) {
    model.bind(param, copied(model, param, pieces, dtype));
    return;
  }
  Tensor value = param.value;
  value.dtype = dtype;
  value.data = const_cast<char*>(pieces[0].from.data);
  value.row_bytes = bytes_of(dtype, value.cols());
  std::vector<const void*> places;
  if (pieces.size() > 1)
    for (const BoundPiece& piece : pieces) places.push_back(piece.from.data);
  model.bind(param, value, std::move(places));
}

}  // namespace

void to_file(std::span<float> numbers, const FileTensor::Piece& piece) {
  using Change = FileTensor::Piece::Change;
  if (piece.change != Change::none)
    for (float& x : numbers)
      x = piece.change == Change::plus_one ? x + 1
          : piece.change == Change::exp    ? std::exp(x)
                                           : -std::exp(x);
  if (piece.factor != 1)
    for (float& x : numbers) x *= piece.factor;
}

void columns_to_file(std::span<float> row, const FileTensor::Piece& piece) {
  reorder(row, piece.columns, [&](int64_t at) { return piece.columns.file_row(at); });
}

void columns_to_file(std::span<std::byte> row, const FileTensor::Piece& piece, DType dtype) {
  RowOrder order = piece.columns;
  order.head = bytes_of(dtype, order.head);
  reorder(row, order, [&](int64_t at) { return order.file_row(at); });
}

void from_file(std::span<float> numbers, const FileTensor::Piece& piece) {
  using Change = FileTensor::Piece::Change;
  if (piece.factor != 1)
    for (float& x : numbers) x /= piece.factor;
  if (piece.change != Change::none)
    for (float& x : numbers)
      x = piece.change == Change::plus_one ? x - 1 : std::log(piece.change == Change::exp ? x : -x);
}

Tensor matrix_of(const FileTensor::Piece& piece, int64_t m) {
  const Param& param = *piece.param;
  if (piece.heads > 0) {
    const int64_t rows = param.value.rows() / piece.heads;
    return param.value.slice_rows(m * rows, (m + 1) * rows);
  }
  if (piece.rows.count > 0)
    return param.value.slice_rows(piece.rows.begin, piece.rows.begin + piece.rows.count);
  if (param.value.rank == 3) return param.expert(piece.expert >= 0 ? piece.expert : m);
  return piece.expert >= 0 ? param.value.at(piece.expert) : param.value;
}

Tensor numbers_of(const FileTensor::Piece& piece) {
  const bool whole = piece.expert < 0 && piece.rows.count == 0;
  return whole ? piece.param->value : matrix_of(piece, 0);
}

void adapt_row(std::span<float> row, const FileTensor::Piece& piece, int64_t m, int64_t r) {
  const Param& w = *piece.param;
  if (piece.heads > 0) adapt_row(row, w, 0, m * (w.value.rows() / piece.heads) + r);
  else if (piece.rows.count > 0) adapt_row(row, w, 0, piece.rows.begin + r);
  else adapt_row(row, w, piece.expert >= 0 ? piece.expert : m, r);
}

std::vector<FileTensor> map_tensors(const TensorNames& names, Model& model) {
  std::vector<FileTensor> map;
  for (Param* param : model.params()) add_piece(map, row_of(names, *param), *param, model.config());
  if (model.config().tied && !names.tied_head.empty()) {
    Param* embedding = model.lm_head().weight;
    map.push_back({.name = std::string(names.tied_head),
                   .shape = shape_of(embedding->value),
                   .pieces = {{embedding}},
                   .alias = true});
  }
  if (names.folds) fold_multipliers(map, model.config());
  for (const std::string_view buffer : names.buffers)
    for (const std::string& name : names_of_all(buffer, model.config()))
      map.push_back({.name = name, .shape = {}, .pieces = {}, .alias = true});
  return map;
}

std::vector<FileTensor> map_tensors(const Architecture& architecture, Model& model) {
  return map_tensors(*architecture.names, model);
}

void change_prefix(std::vector<FileTensor>& map, const TensorNames& names,
                   const NamedTensors& file) {
  if (names.prefix.empty()) return;
  for (FileTensor& tensor : map) {
    if (file.contains(tensor.name) || !tensor.name.starts_with(names.prefix)) continue;
    const std::string bare = tensor.name.substr(names.prefix.size()),
                      other = fmt::format("{}{}", names.other_prefix, bare);
    if (file.contains(bare)) tensor.name = bare;
    else if (file.contains(other)) tensor.name = other;
  }
}

namespace {

constexpr std::string_view kThinker = "thinker.";  // the one of several models that writes text

}  // namespace

void enter_text(std::vector<FileTensor>& map, const NamedTensors& file) {
  constexpr std::string_view kModel = "model.", kText = "language_model.";
  for (FileTensor& tensor : map) {
    if (file.contains(tensor.name)) continue;
    const auto inside = [&](std::string_view text) {
      return tensor.name.starts_with(kModel)
                 ? fmt::format("{}{}{}", kModel, text, tensor.name.substr(kModel.size()))
                 : tensor.name;
    };
    for (const std::string& name :
         {inside(kText), inside("text_model."), fmt::format("{}{}", kText, tensor.name),
          fmt::format("{}{}", kThinker, tensor.name)})
      if (file.contains(name)) {
        tensor.name = name;
        break;
      }
  }
}

double parameter_count(const ModelConfig& config) {
  double total = 0;
  each_param(config, [&](const Param& param, int64_t layers) {
    double numbers = static_cast<double>(layers);
    for (int i = 0; i < param.value.rank; ++i)
      numbers *= static_cast<double>(param.value.shape[static_cast<size_t>(i)]);
    total += numbers;
  });
  return total;
}

void check_size(const ModelConfig& config, const NamedTensors& file, std::string_view asker) {
  double held = 0;
  for (const NamedTensor& tensor : file.tensors())
    held += static_cast<double>(tensor.value.numel());
  const double wanted = parameter_count(config);
  constexpr double kSlack = 1 << 16;
  if (wanted > 2 * held + kSlack)
    fail(
        "{}: {} asks for a model of {:.0f} numbers, but the tensors here hold {:.0f}; they do not "
        "belong together",
        file.path(), asker, wanted, held);
}

namespace {

// What the tensors are called of what checkpoints have beside a model of text.
struct BesideRow {
  std::string_view begins, what;
};
constexpr std::string_view kFurther = "layers that predict further tokens",
                           kPictures = "a tower for pictures", kSound = "a tower for sound",
                           kProjector = "what brings pictures or sound in",
                           kSpeech = "a model that speaks";
constexpr BesideRow kBeside[] = {
    {"mtp.", kFurther},
    {"model.mtp", kFurther},
    {"language_model.model.mtp.", kFurther},
    {"visual.", kPictures},
    {"model.visual.", kPictures},
    {"vision_tower.", kPictures},
    {"model.vision_tower.", kPictures},
    {"vision_model.", kPictures},
    {"model.vision_model.", kPictures},
    {"model.vision_encoder.", kPictures},
    {"model.connector.", kPictures},
    {"mlp1.", kProjector},
    {"mm_projector.", kProjector},
    {"model.vision_projection.", kProjector},
    {"multi_modal_projector.", kProjector},
    {"model.multi_modal_projector.", kProjector},
    {"patch_merge_mlp.", kProjector},
    {"model.sam_model.", kPictures},
    {"model.qwen2_model.", kPictures},
    {"model.projector.", kPictures},
    {"model.view_seperator", kPictures},
    {"model.view_separator", kPictures},
    {"image_newline", kPictures},
    {"model.image_newline", kPictures},
    {"audio_tower.", kSound},
    {"model.audio_tower.", kSound},
    {"embed_vision.", kPictures},
    {"model.embed_vision.", kPictures},
    {"embed_audio.", kSound},
    {"model.embed_audio.", kSound},
    {"talker.", kSpeech},
    {"code2wav.", kSpeech},
    {"token2wav.", kSpeech},
};
constexpr std::string_view kLayers[] = {"model.layers.", "model.language_model.layers.",
                                        "language_model.model.layers.", "model.text_model.layers.",
                                        "blk."};  // of folders and of GGUF

// What a tensor belongs to beside the model of text; empty: nothing that is known. Layers behind
// the model's own predict further tokens.
std::string_view beside_text(std::string_view name, const std::vector<FileTensor>& map) {
  const std::string_view own = name.starts_with(kThinker) ? name.substr(kThinker.size()) : name;
  for (const BesideRow& row : kBeside)
    if (own.starts_with(row.begins)) return row.what;
  const auto* const begins = std::ranges::find_if(
      kLayers, [&](std::string_view layers) { return name.starts_with(layers); });
  if (begins == std::end(kLayers)) return "";
  const std::string_view layer = name.substr(0, name.find('.', begins->size()) + 1);
  const auto has = [&](std::string_view what) {
    return std::any_of(map.begin(), map.end(),
                       [&](const FileTensor& tensor) { return tensor.name.starts_with(what); });
  };
  const size_t digits = layer.find_first_not_of("0123456789", begins->size());
  const bool numbered = digits + 1 == layer.size() && digits > begins->size();
  return numbered && has(*begins) && !has(layer) ? kFurther : "";
}

// Of tensors that no parameter takes those that are beside the model of text; the others stay.
std::vector<Beside> take_beside(std::vector<std::string>& unused,
                                const std::vector<FileTensor>& map) {
  std::vector<Beside> all;
  std::erase_if(unused, [&](const std::string& name) {
    const std::string_view what = beside_text(name, map);
    if (what.empty()) return false;
    auto it = std::find_if(all.begin(), all.end(), [&](const Beside& b) { return b.what == what; });
    if (it == all.end()) it = all.insert(it, {std::string(what), name});
    ++it->tensors;
    return true;
  });
  return all;
}

}  // namespace

std::vector<Beside> check_account(const std::vector<FileTensor>& map, const NamedTensors& file,
                                  std::string_view asker, BesideText beside_is) {
  std::set<std::string_view> known;
  for (const FileTensor& tensor : map) known.insert(tensor.name);
  std::vector<std::string> unused;
  for (const NamedTensor& tensor : file.tensors())
    if (!known.contains(tensor.name)) unused.push_back(tensor.name);
  std::vector<Beside> beside = take_beside(unused, map);
  for (const FileTensor& tensor : map) {
    if (file.contains(tensor.name)) continue;
    if (!tensor.alias)
      fail("{}: there is no tensor \"{}\", which {} asks for{}", file.path(), tensor.name, asker,
           suggestion(tensor.name, unused, 0));
  }
  if (!unused.empty())
    fail("{}: tensor \"{}\" is no part of the model that {} describes{}", file.path(),
         printable(unused[0]), asker,
         unused.size() > 1 ? fmt::format(", nor are {} others", unused.size() - 1) : "");
  if (!beside.empty() && beside_is == BesideText::refuse)
    fail(
        "{}: {} of {} (\"{}\" ...) lie beside the model of text that {} describes; `moe convert IN "
        "OUT --text-only` makes a model without them",
        file.path(), counted(beside[0].tensors, "tensor"), beside[0].what,
        printable(beside[0].example), asker);
  for (const FileTensor& tensor : map)
    if (!tensor.pieces.empty() && file.contains(tensor.name))
      check_shape(tensor, file.get(tensor.name), file.path(), asker);
  return beside;
}

bool is_taken_here(const FileTensor& tensor) {
  return std::any_of(tensor.pieces.begin(), tensor.pieces.end(), is_here);
}

void bind_tensors(const std::vector<FileTensor>& map, const NamedTensors& file, Model& model,
                  LoadFor purpose) {
  if (purpose == LoadFor::training) {
    read_tensors(map, file);
    for (Param* param : model.params()) param->touched();
  } else {
    std::map<const Param*, std::vector<BoundPiece>> pieces;
    for (const FileTensor& tensor : map)
      if (!tensor.alias && is_taken_here(tensor))
        each_source(tensor, file.get(tensor.name),
                    [&](const FileTensor::Piece& piece, const Source& whole) {
                      const Source from = part_here(piece, whole);
                      if (from.count > 0) pieces[piece.param].push_back({piece, from});
                    });
    for (Param* param : model.params()) bind_param(model, *param, pieces.at(param));
  }
  check_aliases(map, file);
}

std::vector<SafetensorsItem> items_of(const std::vector<FileTensor>& map, DType dtype,
                                      bool with_alias, const comm::Group& experts) {
  const auto buffer = std::make_shared<std::vector<float>>();
  const auto landing = std::make_shared<Landing>(experts);
  std::vector<SafetensorsItem> items;
  for (const FileTensor& tensor : map) {
    if (tensor.pieces.empty() || (tensor.alias && !with_alias)) continue;
    // Buffers take steps too small for bf16.
    const DType kept = tensor.pieces[0].param->is_buffer() ? DType::f32 : dtype;
    SafetensorsItem& item =
        items.emplace_back(SafetensorsItem{.name = tensor.name, .value = {}, .dtype = kept});
    item.number = tensor.number;
    const FileTensor::Piece& piece = tensor.pieces[0];
    const bool scattered =
        (piece.expert < 0 && !piece.param->places().empty()) || piece.param->is_share();
    if (tensor.pieces.size() == 1 && !piece.transpose && piece.order.as_in_model() && !scattered &&
        piece.keeps_numbers() && piece.columns.as_in_model() && !piece.param->is_adapted() &&
        !is_quantised(piece.param->value.dtype)) {
      item.value = shaped(numbers_of(piece), tensor.shape);
      continue;
    }
    item.value.rank = static_cast<int>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), item.value.shape.begin());
    if (piece.param->is_share()) {
      item.produce = [tensor, landed = landing->landed(tensor), landing, buffer] {
        landing->bring(tensor);
        return landing->is_first() ? shaped(gathered(landed, *buffer), tensor.shape) : Tensor{};
      };
      continue;
    }
    item.produce = [tensor, buffer] { return shaped(gathered(tensor, *buffer), tensor.shape); };
  }
  return items;
}

}  // namespace moe
