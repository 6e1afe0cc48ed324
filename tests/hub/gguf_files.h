// Models in GGUF files, and files that are changed, for the tests of what is read and written.
#pragma once

#include <cmath>

#include "hub/convert.h"
#include "hub/gather.h"
#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_model.h"
#include "hub/gguf/quant_policy.h"
#include "hub/gguf_configs.h"
#include "support/check.h"
#include "support/files.h"
#include "text/tokenizer.h"

namespace moe::test::gguf_files {

inline std::unique_ptr<Model> drawn_model(const ModelConfig& config, uint64_t seed = 3) {
  auto model = std::make_unique<Model>(config);
  uint64_t index = 0;
  for (Param* param : model->params()) {
    const RngKey key = RngKey::from_seed(seed).fold(index++);
    const float scale = param->role == Role::norm ? 0.2f : 0.3f,
                middle = param->role == Role::norm ? 1.0f : 0.0f;
    for (int64_t i = 0; i < param->value.numel(); ++i)
      param->value.as<float>()[i] = middle + scale * normal(key, static_cast<uint64_t>(i));
    if (config.norm_offset && param->role == Role::norm)  // of few bits: adding 1 keeps them
      for (int64_t i = 0; i < param->value.numel(); ++i)
        param->value.as<float>()[i] = std::round(1024 * param->value.as<float>()[i]) / 1024;
    // the logarithm of what the file has, exactly
    if (param->kind == ParamKind::linear_a_log || param->kind == ParamKind::scan_a_log)
      std::fill_n(param->value.as<float>(), param->value.numel(), 0.0f);
    param->touched();
  }
  return model;
}

// [N,V] of a fixed sequence.
inline std::vector<double> logits_of(Model& model) {
  moe::Run run(2);
  std::vector<int32_t> ids, positions;
  for (int32_t i = 0; i < 12; ++i) {
    ids.push_back(
        static_cast<int32_t>(uniform_index(RngKey::from_seed(5), static_cast<uint64_t>(i), 256)));
    positions.push_back(i);
  }
  const std::vector<int64_t> bounds = {0, 12};
  const Batch batch{ids, positions, bounds};
  const ModelConfig& c = model.config();
  const std::optional<RoutingSpec> spec =
      c.moe_layer_count() > 0 ? std::optional(eval_spec(c.routing)) : std::nullopt;
  ModelSaved saved;
  model.forward(run, {.batch = batch, .routing = spec ? &*spec : nullptr}, saved);
  const Tensor out = run.saved.alloc(DType::f32, {12, c.vocab});
  model.logits(run, out, saved.hidden);
  return values(out);
}

// A tensor's rows in one part: as they are where all of them have the wanted type, else f32 for the
// writer to convert.
inline GgufItem item_of(const FileTensor& tensor, DType dtype) {
  const bool as_stored = std::ranges::all_of(tensor.pieces, [&](const FileTensor::Piece& piece) {
    return piece.param->value.dtype == dtype && !piece.transpose;
  });
  const DType given = as_stored ? dtype : DType::f32;
  const auto buffer = std::make_shared<std::vector<std::byte>>();
  return {tensor.name, dtype, tensor.shape, [=](int64_t) {
            const FileRows walk = rows_of(tensor);
            Coverage nobody_asks;
            buffer->resize(static_cast<size_t>(walk.rows * bytes_of(given, walk.cols)));
            if (as_stored)
              gather_stored(buffer->data(), tensor, dtype, 0, walk.rows, 2, nobody_asks);
            else
              gather_rows(reinterpret_cast<float*>(buffer->data()), tensor, 0, walk.rows, 2,
                          nobody_asks);
            return walk.cols == 1 && tensor.shape.back() != 1
                       ? Tensor(buffer->data(), given, {walk.rows})
                       : Tensor(buffer->data(), given, {walk.rows, walk.cols});
          }};
}

// What stays f32 whatever the rest is: norms, biases, routers, positions and buffers.
inline bool stays_f32(const Model& model, const FileTensor& tensor) {
  const WeightKind kind = kind_of(model, *tensor.pieces[0].param);
  return kind == WeightKind::small || kind == WeightKind::buffer;
}

inline void save_target(const std::string& path, Model& model, GgufTarget target, DType dtype) {
  std::vector<GgufItem> items = std::move(target.tables);
  for (const FileTensor& tensor : target.tensors) {
    const bool fits = tensor.shape.back() % block_of(dtype).elements == 0;
    items.push_back(item_of(tensor, fits && !stays_f32(model, tensor) ? dtype : DType::f32));
  }
  for (const GgufEntry& entry : gguf_type_entries(items)) target.metadata.push_back(entry);
  write_gguf(path, target.metadata, items, 2);
}

// A model as it lies in memory, in one type where that fits a row, as `moe convert` writes one that
// lies in a file.
inline void save(const std::string& path, Model& model, DType dtype = DType::f32) {
  save_target(path, model, gguf_target(model, *make_tokenizer("bytes")), dtype);
}

// The same as a row has it that may not be the one by which it is written.
inline void save_as(const std::string& path, Model& model, const GgufArchitecture& row) {
  GgufTarget target = gguf_target(model, *make_tokenizer("bytes"));
  std::erase_if(target.metadata,
                [](const GgufEntry& e) { return !e.key.starts_with("tokenizer."); });
  for (const GgufEntry& entry : gguf_config_entries(row, model.config()))
    target.metadata.push_back(entry);
  target.tensors.clear();
  for (const FileTensor& tensor : map_tensors(*row.tensors, model))
    if (!tensor.pieces.empty() && !tensor.alias) target.tensors.push_back(tensor);
  save_target(path, model, std::move(target), DType::f32);
}

// The file as a folder of the family, and that as a file of the same architecture.
inline void expect_back_from_folder(const std::string& path, const TempFolder& to, Model& model,
                                    const std::string& model_type) {
  LoadedModel bound = open_model(path, {});
  const std::string folder = to / "folder";
  std::filesystem::create_directory(folder);
  convert_model(bound, path, folder, {});
  LoadedModel of_folder = open_model(folder, {});
  EXPECT_EQ(of_folder.model->config().model_type, model_type);
  EXPECT_EQ(logits_of(*of_folder.model), logits_of(model));
  EXPECT_EQ(convert_model(of_folder, folder, to / "c.gguf", {}).why_own, "");
  EXPECT_EQ(logits_of(*load_model(to / "c.gguf").model), logits_of(model));
}

// A file of one architecture whose entries and tensors can be changed.
class ChangedGguf : public ::testing::Test {
 protected:
  void start(const std::string& name) {
    for (const auto& [row, config] : gguf_configs())
      if (row == name) model_ = drawn_model(config);
    ASSERT_NE(model_, nullptr);
    start();
  }
  void start() {
    const auto tokenizer = make_tokenizer("bytes");
    target_ = gguf_target(*model_, *tokenizer);
    save(path_, *model_);
    file_ = std::make_unique<Gguf>(Gguf::open(path_));
    for (const NamedTensor& t : file_->tensors()) tensors_.push_back(t);
  }
  GgufEntry& entry(const std::string& key) {
    for (GgufEntry& entry : target_.metadata)
      if (entry.key == key) return entry;
    ADD_FAILURE() << key;
    return target_.metadata[0];
  }
  // Of an entry of this key only the new one is left.
  void set(const GgufEntry& entry) {
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == entry.key; });
    target_.metadata.push_back(entry);
  }
  void write() {
    std::vector<GgufItem> items;
    for (const NamedTensor& t : tensors_)
      items.push_back({t.name,
                       t.value.dtype,
                       {t.value.shape.begin(), t.value.shape.begin() + t.value.rank},
                       [t](int64_t) { return t.value; }});
    write_gguf(folder_ / "b.gguf", target_.metadata, items);
  }
  std::string message() {
    write();
    return message_of([&] { open_model(folder_ / "b.gguf", {}); });
  }
  void expect_refused(const std::string& part) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, message());
  }

  TempFolder folder_;
  std::string path_ = folder_ / "a.gguf";
  std::unique_ptr<Model> model_;
  std::unique_ptr<Gguf> file_;
  GgufTarget target_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace moe::test::gguf_files
