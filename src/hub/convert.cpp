#include "hub/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/threads.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "hub/folder/config_json.h"
#include "hub/foreign.h"
#include "hub/gather.h"
#include "hub/gguf/gguf_model.h"
#include "hub/gguf/imatrix.h"
#include "tensor/quant.h"
#include "tensor/quant_compensated.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunk = int64_t{16}
                           << 20;  // bytes of f32 held at a time; a turned matrix comes whole

// A tensor of the target, with what becomes of it.
struct Planned {
  FileTensor tensor;
  // as its numbers are stored in the source; f32 where they are stored in several types
  DType from;
  DType to;
  std::string_view why;
  bool as_stored;                          // its bytes are taken as they are
  const ColumnSums* importance = nullptr;  // what its errors are weighed by; null: nothing

  int64_t bytes() const {
    const FileRows walk = rows_of(tensor);
    return walk.rows * bytes_of(to, walk.cols);
  }
};

// In how each parameter is stored in the source: the types of the tensors it comes from.
struct Stored {
  DType dtype;
  bool mixed = false;
};
using StoredTypes = std::map<const Param*, Stored>;

StoredTypes stored_types(const LoadedModel& model) {
  StoredTypes types;
  for (const FileTensor& tensor : model.source->map) {
    if (tensor.alias || !model.source->file->contains(tensor.name)) continue;
    const DType dtype = model.source->file->get(tensor.name).dtype;
    for (const FileTensor::Piece& piece : tensor.pieces) {
      const auto [entry, is_new] = types.emplace(piece.param, Stored{dtype});
      entry->second.mixed = entry->second.mixed || entry->second.dtype != dtype;
    }
  }
  return types;
}

// By the name of which llama.cpp's rules know it. What else is fused, such as an FFN's gates and
// ups, or what a state space is made by, has bits as any matrix.
bool is_fused_attention(const FileTensor& tensor) {
  return tensor.name.find("attn_qkv.") != std::string::npos;
}

Planned plan_tensor(const FileTensor& tensor, const LoadedModel& model, const StoredTypes& types,
                    const ConvertOptions& options, Target target) {
  const std::optional<WantedType>& asked = options.dtype;
  const Param& first = *tensor.pieces[0].param;
  Stored stored = types.at(&first);
  bool as_stored = is_quantised(stored.dtype) && !tensor.columns;
  for (const FileTensor::Piece& piece : tensor.pieces) {
    const Stored& other = types.at(piece.param);
    stored.mixed = stored.mixed || other.mixed || other.dtype != stored.dtype;
    as_stored = as_stored && !piece.transpose && piece.factor == 1 &&
                piece.param->value.dtype == stored.dtype && !piece.param->is_adapted();
  }
  if (stored.mixed) stored.dtype = DType::f32;
  const WeightKind kind = kind_of(*model.model, first);
  std::optional<DType> wanted;
  const bool in_mix = asked && asked->mix != nullptr &&
                      (kind == WeightKind::product || kind == WeightKind::embedding);
  if (asked)
    wanted = in_mix ? type_in_mix(*asked->mix, first, is_fused_attention(tensor),
                                  model.model->config(), options.importance != nullptr)
                    : asked->dtype;
  constexpr int64_t kNumbers = 256;  // whole blocks of any type
  const int64_t cols = tensor.shape.back();
  TypeChoice choice =
      kind == WeightKind::sketch
          ? choose_sketch_type(sketch_type(model.model->config(), first), cols, target)
          : choose_type(kind, cols, stored.dtype, wanted, target);
  if (asked && choice.why.empty() && choice.dtype != asked->dtype)
    choice.why = bytes_of(choice.dtype, kNumbers) > bytes_of(asked->dtype, kNumbers)
                     ? "the mix gives it more bits"
                     : "the mix gives it fewer bits";
  if (stored.mixed && !asked && choice.why.empty()) choice.why = "its parts have several types";
  as_stored = as_stored && !stored.mixed && choice.dtype == stored.dtype;
  if (!as_stored && !can_make(choice.dtype))
    fail_usage(
        "tensor \"{}\" changes and is {}, which is read, not made; choose a type with @quant or "
        "@dtype",
        tensor.name, name_of(choice.dtype));
  return {tensor, stored.dtype, choice.dtype, choice.why, as_stored};
}

// The source's side of the account: each of its tensors but those that were left out stands in the
// map once, and together they are the model.
void settle_source(const LoadedModel& model, const std::string& in, ConvertReport& report) {
  std::map<std::string_view, int> times;
  Coverage consumed;
  for (const FileTensor& tensor : model.source->map) {
    if (!model.source->file->contains(tensor.name)) {
      if (!tensor.alias)
        fail("{}: the account does not come out: there is no tensor \"{}\"", in, tensor.name);
      continue;
    }
    ++times[tensor.name];
    ++report.sources;
    report.aliases += tensor.alias ? 1 : 0;
    if (!tensor.alias) consumed.add(tensor);
  }
  int64_t left_out = 0;  // that may be consumed by nothing
  for (const Beside& beside : model.left_out) left_out += beside.tensors;
  for (const NamedTensor& tensor : model.source->file->tensors()) {
    const int consumed_times = times[tensor.name];
    if (consumed_times == 0 && left_out-- > 0) continue;
    if (consumed_times != 1)
      fail("{}: the account does not come out: tensor \"{}\" was consumed {} times", in,
           tensor.name, consumed_times);
    report.bytes_before += tensor.value.bytes();
  }
  consumed.settle(model.model->params(), in);
  report.numbers = consumed.numbers();
}

void add_rows(ConvertReport& report, const std::vector<Planned>& plan, const LoadedModel& model) {
  std::map<const Param*, size_t> row_of;  // of the first target that holds the parameter
  for (const Planned& p : plan) {
    auto row = std::find_if(report.rows.begin(), report.rows.end(), [&](const ConvertedRow& r) {
      return r.from == p.from && r.to == p.to && r.why == p.why;
    });
    if (row == report.rows.end())
      row = report.rows.insert(
          row, {.from = p.from, .to = p.to, .why = p.why, .example = p.tensor.name});
    ++row->targets;
    row->bytes_after += p.bytes();
    for (const FileTensor::Piece& piece : p.tensor.pieces)
      row_of.emplace(piece.param, static_cast<size_t>(row - report.rows.begin()));
    ++report.targets;
    report.bytes_after += p.bytes();
    report.quantised_twice += is_quantised(p.from) && is_quantised(p.to) && p.from != p.to ? 1 : 0;
  }
  for (const FileTensor& tensor : model.source->map) {
    if (tensor.alias || !model.source->file->contains(tensor.name)) continue;
    ConvertedRow& row = report.rows[row_of.at(tensor.pieces[0].param)];
    ++row.sources;
    row.bytes_before += model.source->file->get(tensor.name).bytes();
  }
}

// Whether the scales of a type hang on what the columns are worth.
bool takes_importance(DType to) {
  return is_quantised(to) && to != DType::q8_0 && to != DType::mxfp4;
}

void weigh(std::vector<Planned>& plan, const LoadedModel& model, const ConvertOptions& options,
           ConvertReport& report) {
  const Importance& importance = *options.importance;
  for (Planned& p : plan) {
    if (!takes_importance(p.to) || p.as_stored) continue;
    const WeightKind kind = kind_of(*model.model, *p.tensor.pieces[0].param);
    const auto found = importance.tensors.find(p.tensor.name);
    if (found != importance.tensors.end()) {
      check_fits(found->second, p.tensor, options.importance_from);
      p.importance = &found->second;
      ++report.weighed;
    } else if (kind == WeightKind::product) {
      report.not_weighed.push_back(p.tensor.name);
    }
  }
  if (report.weighed == 0 && !report.not_weighed.empty())
    fail("{}: it knows no matrix of this model, \"{}\" for one; is it another model's?",
         options.importance_from, report.not_weighed[0]);
}

// The largest number that does not become infinite in this type. The scales of quantised blocks are
// f16.
float largest_of(DType to) {
  if (to == DType::f32) return FLT_MAX;
  return to == DType::bf16 ? 3.3895e38f : 65504;
}

// Makes the tensors of the target, a few rows at a time, and counts what it did.
class Feed {
 public:
  Feed(const LoadedModel& model, std::string in, const ConvertOptions& options, int64_t bytes)
      : model_(model), in_(std::move(in)), options_(options), bytes_(bytes) {}

  // The next rows of a tensor, in its type; they stay until the next call.
  Tensor next(const Planned& p) {
    const FileRows walk = rows_of(p.tensor);
    const int64_t begin = done_[p.tensor.name];
    const int64_t many = std::max<int64_t>(1, kChunk / 4 / (walk.cols * walk.step)) * walk.step;
    const int64_t end = std::min(walk.rows, begin + many), n = end - begin;
    if (n <= 0)
      fail("{}: the account does not come out: tensor \"{}\" is asked for twice", in_,
           p.tensor.name);
    floats_.resize(static_cast<size_t>(n * walk.cols));
    Coverage again;
    gather_rows(floats_.data(), p.tensor, begin, end, options_.threads,
                p.tensor.alias ? again : read_);
    check(p, begin * walk.cols);
    const int64_t row_bytes = bytes_of(p.to, walk.cols);
    out_.resize(static_cast<size_t>(n * row_bytes));
    if (p.as_stored)
      gather_stored(out_.data(), p.tensor, p.to, begin, end, options_.threads, again);
    else quantise_rows(p, begin, n);
    done_[p.tensor.name] = end;
    written_ += n * row_bytes;
    if (options_.progress) options_.progress(written_, bytes_);
    // A vector that was walked number by number is one row, unless it stands as rows of one.
    if (walk.cols == 1 && p.tensor.shape.back() != 1) return Tensor(out_.data(), p.to, {n});
    return Tensor(out_.data(), p.to, {n, walk.cols});
  }
  // Tensors whose rounding errors were made good.
  int64_t compensated() const { return compensated_; }
  bool is_done(const Planned& p) const {
    const auto found = done_.find(p.tensor.name);
    return found != done_.end() && found->second == rows_of(p.tensor).rows;
  }
  // The target's side of the account.
  void settle(const std::vector<Planned>& plan, const std::string& out) const {
    for (const Planned& p : plan)
      if (!is_done(p))
        fail("{}: the account does not come out: tensor \"{}\" was not written whole", out,
             p.tensor.name);
    if (written_ != bytes_)
      fail("{}: the account does not come out: {} bytes of tensors instead of {}", out, written_,
           bytes_);
    read_.settle(model_.model->params(), out);
  }

 private:
  // n rows in floats_, the first of which is row `begin` of the tensor, into out_.
  void quantise_rows(const Planned& p, int64_t begin, int64_t n) {
    const FileRows walk = rows_of(p.tensor);
    const int64_t row_bytes = bytes_of(p.to, walk.cols);
    if (p.importance != nullptr && begin == 0) weights_ = column_weights(*p.importance, p.tensor);
    const int64_t of_matrix = walk.rows / matrices_of(p.tensor).matrices;
    for (int64_t first = 0, last; first < n; first = last) {
      const int64_t m = (begin + first) / of_matrix;
      last = std::min(n, (m + 1) * of_matrix - begin);
      const float* weights = p.importance == nullptr ? nullptr : weights_.data() + m * walk.cols;
      Tensor shares;  // [I,I]
      if (weights != nullptr && options_.shares != nullptr)
        shares = options_.shares->of(p.tensor, m, options_.threads);
      if (!shares.empty() && last_compensated_ != &p) {
        ++compensated_;
        last_compensated_ = &p;
      }
      parallel_for(options_.threads, last - first, 1, [&](int64_t r0, int64_t r1, int) {
        const int64_t r = first + r0;
        char* out = out_.data() + r * row_bytes;
        const Tensor rows(floats_.data() + r * walk.cols, DType::f32, {r1 - r0, walk.cols});
        if (!shares.empty()) return quantise_compensated(out, rows, p.to, weights, shares);
        for (int64_t i = 0; i < rows.rows(); ++i)
          quantise(out + i * row_bytes, rows.row<float>(i), p.to, walk.cols, weights);
      });
    }
  }
  // That what lies in floats_ can be said in the new type. `first` is its first number in the
  // tensor.
  void check(const Planned& p, int64_t first) const {
    const float limit = largest_of(p.to);
    const auto n = static_cast<int64_t>(floats_.size());
    std::atomic<int64_t> bad{
        n};  // the first one, so that the message does not depend on the threads
    parallel_for(options_.threads, n, 1 << 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        if (std::fabs(floats_[static_cast<size_t>(i)]) <= limit) continue;
        for (int64_t known = bad; i < known && !bad.compare_exchange_weak(known, i);) {
        }
        return;
      }
    });
    if (bad == n) return;
    const float x = floats_[static_cast<size_t>(bad)];
    const std::string where =
        fmt::format("{}: number {} of tensor \"{}\"", in_, first + bad, p.tensor.name);
    if (!std::isfinite(x))
      fail("{} is {}; a model with such weights computes nothing; nothing was written", where, x);
    fail("{} is {}, and {} ends at {}; take @dtype {}; nothing was written", where, x,
         name_of(p.to), limit, p.to == DType::bf16 ? "f32" : "bf16 or f32");
  }

  const LoadedModel& model_;
  std::string in_;
  const ConvertOptions& options_;
  int64_t bytes_;
  int64_t written_ = 0, compensated_ = 0;
  const Planned* last_compensated_ = nullptr;  // a tensor's rows come one after another
  std::map<std::string, int64_t> done_;        // rows of each tensor
  Coverage read_;
  std::vector<float> floats_;
  std::vector<float> weights_;  // of the tensor whose turn it is, [M,I]
  std::vector<char> out_;
};

// What a file that this one was made from says of itself.
void keep_general(std::vector<GgufEntry>& metadata, const LoadedModel& model) {
  const auto keep = [&](const std::map<std::string, std::string>& values, GgufEntry::Type type) {
    for (const auto& [key, value] : values) {
      const bool there =
          std::any_of(metadata.begin(), metadata.end(),
                      [&name = key](const GgufEntry& entry) { return entry.key == name; });
      if (key.starts_with("general.") && !there) metadata.push_back({key, type, value});
    }
  };
  keep(model.metadata, GgufEntry::Type::string);
  keep(model.general, GgufEntry::Type::as_stored);
}

// Whether the GGUF file holds a model of the same tensors, such as an earlier conversion of this
// one.
bool holds_same(const std::string& path, const std::vector<FileTensor>& tensors) {
  const Gguf file = Gguf::open(path);
  return std::all_of(tensors.begin(), tensors.end(), [&](const FileTensor& want) {
    if (!file.contains(want.name)) return false;
    const Tensor got = file.get(want.name);
    return std::equal(want.shape.begin(), want.shape.end(), got.shape.begin(),
                      got.shape.begin() + got.rank);
  });
}

void fail_is_model(const std::string& out) {
  fail("{} is the model itself; choose another name for the result", out);
}

// Fails where one of several files that are about to be written is another model's, or the model's
// own.
void check_parts(const std::vector<GgufPart>& parts, const std::string& in,
                 const std::vector<FileTensor>& tensors) {
  std::error_code error;
  if (parts.size() == 1) return;  // as check_convert_target has it
  if (fs::equivalent(in, parts[0].path, error)) fail_is_model(parts[0].path);
  const bool first = fs::exists(parts[0].path, error);
  for (const GgufPart& part : parts)
    if (!first && fs::exists(part.path, error))
      fail("{} is there without the first of its files; choose another name or delete it first",
           part.path);
  if (first && !holds_same(parts[0].path, tensors))
    fail("{} holds another model; choose another name or delete it first", parts[0].path);
}

void tell_of_earlier(const std::string& file, const std::string& name,
                     const ConvertOptions& options) {
  std::error_code error;
  if (options.replacing && fs::exists(file, error)) options.replacing(name);
}

// The files that were made, the first of which opens all.
std::vector<std::string> write_as_gguf(const std::string& in, const std::string& out,
                                       LoadedModel& model, const std::vector<Planned>& plan,
                                       GgufTarget target, const ConvertOptions& options,
                                       Feed& feed) {
  std::vector<GgufItem> items = std::move(target.tables);
  for (const Planned& p : plan) {
    const bool last = &p == &plan.back();
    items.push_back({p.tensor.name, p.to, p.tensor.shape, [&, last](int64_t) {
                       const Tensor rows = feed.next(p);
                       // before the file takes its name
                       if (last && feed.is_done(p)) feed.settle(plan, out);
                       return rows;
                     }});
  }
  const QuantMix* mix = options.dtype ? options.dtype->mix : nullptr;
  for (const GgufEntry& entry : gguf_type_entries(items, mix)) target.metadata.push_back(entry);
  if (options.importance != nullptr)
    for (const GgufEntry& entry : gguf_importance_entries(*options.importance))
      target.metadata.push_back(entry);
  keep_general(target.metadata, model);
  const std::vector<GgufPart> parts = gguf_parts(out, items, options.file_bytes);
  check_parts(parts, in, target.tensors);
  tell_of_earlier(parts[0].path, parts[0].path, options);
  write_gguf(parts, target.metadata, items);
  std::vector<std::string> files;
  for (const GgufPart& part : parts) files.push_back(part.path);
  return files;
}

void write_as_folder(const std::string& out, LoadedModel& model, const std::vector<Planned>& plan,
                     const ConvertOptions& options, Feed& feed) {
  std::vector<SafetensorsItem> items;
  for (const Planned& p : plan) {
    Tensor shape(nullptr, p.to, {1});
    shape.rank = static_cast<int>(p.tensor.shape.size());
    std::copy(p.tensor.shape.begin(), p.tensor.shape.end(), shape.shape.begin());
    items.push_back({.name = p.tensor.name, .value = shape, .dtype = p.to});
  }
  const std::string weights = out + "/model.safetensors";
  tell_of_earlier(weights, out, options);
  SafetensorsWriter writer(weights, items, model.metadata);
  for (const Planned& p : plan)
    for (int64_t at = 0; !feed.is_done(p);) {
      const Tensor rows = feed.next(p);
      writer.put(p.tensor.name, at, rows);
      at += rows.numel();
    }
  feed.settle(plan, out);
  write_atomically(out + "/config.json", config_to_json(model.model->config()));
  save_tokenizer(out, *model.tokenizer);
  writer.commit();
}

// What stands on the disk is what was planned.
void check_written(const NamedTensors& file, const std::vector<Planned>& plan, size_t tables) {
  if (file.tensors().size() != plan.size() + tables)
    fail("{}: the account does not come out: {} tensors were planned, {} are there", file.path(),
         plan.size() + tables, file.tensors().size());
  for (const Planned& p : plan) {
    const Tensor got = file.get(p.tensor.name);
    if (got.dtype != p.to || !std::equal(p.tensor.shape.begin(), p.tensor.shape.end(),
                                         got.shape.begin(), got.shape.begin() + got.rank))
      fail("{}: the account does not come out: tensor \"{}\" is {}", file.path(), p.tensor.name,
           describe(got));
  }
}

std::vector<FileTensor> folder_tensors(Model& model) {
  const Architecture& architecture = architecture_of(model.config());
  std::vector<FileTensor> tensors = map_tensors(architecture, model);
  std::erase_if(tensors, [&](const FileTensor& t) {
    return t.alias && (t.pieces.empty() || !architecture.stores_tied_head);
  });
  return tensors;
}

}  // namespace

DType stored_dtype(const LoadedModel& model) {
  std::map<DType, int64_t> numbers;
  for (const FileTensor& tensor : model.source->map) {
    if (tensor.alias || tensor.pieces.empty() || !model.source->file->contains(tensor.name))
      continue;
    const Tensor stored = model.source->file->get(tensor.name);
    const WeightKind kind = kind_of(*model.model, *tensor.pieces[0].param);
    if (kind != WeightKind::small && kind != WeightKind::buffer && kind != WeightKind::sketch)
      numbers[stored.dtype] += stored.numel();
  }
  const auto most =
      std::max_element(numbers.begin(), numbers.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == numbers.end() ? DType::f32 : most->first;
}

Target target_of(const std::string& out) {
  return out.ends_with(".gguf") ? Target::gguf : Target::folder;
}

void check_convert_target(const std::string& in, const std::string& out, LoadedModel& model) {
  std::error_code error;
  if (fs::equivalent(in, out, error)) fail_is_model(out);
  if (target_of(out) == Target::folder) {
    for (const char* ending : {".safetensors", ".bin", ".pt", ".pth"})
      if (out.ends_with(ending))
        fail(
            "{}: what is written is a folder; give OUT a name without {}, or one that ends in "
            ".gguf for a single file",
            out, ending);
    check_shadows_nothing(out);
    check_holds_no_others(out);
    return check_save_target(out, *model.model);
  }
  if (!fs::exists(out, error)) return;
  if (fs::is_directory(out, error)) fail("{} is a folder; choose the name of a file", out);
  bool same = false;
  try {
    same = holds_same(out, gguf_target(*model.model, *model.tokenizer).tensors);
  } catch (const Error& e) {
    fail("{} is there and will not be replaced ({}); choose another name or delete it first", out,
         e.what());
  }
  if (!same) fail("{} holds another model; choose another name or delete it first", out);
}

int64_t converting_bytes(const Model& model) {
  int64_t largest = 0;
  for (const Param* param : model.params()) largest = std::max(largest, param->value.numel() * 4);
  return 2 * std::min(largest, kChunk);
}

ConvertReport convert_model(LoadedModel& model, const std::string& in, const std::string& out,
                            const ConvertOptions& options) {
  const Target target = target_of(out);
  if (options.dtype) check_asked(options.dtype->dtype, target);
  ConvertReport report;
  settle_source(model, in, report);
  GgufTarget gguf;
  if (target == Target::gguf) gguf = gguf_target(*model.model, *model.tokenizer);
  const std::vector<FileTensor> tensors =
      target == Target::gguf ? gguf.tensors : folder_tensors(*model.model);
  report.tables = static_cast<int64_t>(gguf.tables.size());
  report.why_own = gguf.why_own;
  report.notes = gguf.notes;
  const StoredTypes types = stored_types(model);
  std::vector<Planned> plan;
  for (const FileTensor& tensor : tensors)
    plan.push_back(plan_tensor(tensor, model, types, options, target));
  if (options.importance != nullptr) {
    weigh(plan, model, options, report);
    report.expert_rows = rows_of_experts(*options.importance, tensors);
  }
  add_rows(report, plan, model);
  Feed feed(model, in, options, report.bytes_after);
  if (target == Target::gguf) {
    report.files = write_as_gguf(in, out, model, plan, std::move(gguf), options, feed);
    check_written(Gguf::open(report.files[0]), plan, static_cast<size_t>(report.tables));
  } else {
    write_as_folder(out, model, plan, options, feed);
    check_written(Safetensors::open(out), plan, 0);
  }
  report.compensated = feed.compensated();
  return report;
}

}  // namespace moe
