// The file of a routing record: which experts each token of a scored text went to, and with which
// weights, so that another run can be made to take the same ones (moe/stages/replay.h) and other
// programs can read them. A safetensors file, docs/replay.md:
//   ids [N] i32, bounds [S+1] i32 (windows); for each MoE layer i of the model: layers.{i}.experts
//     [N,K] i32, layers.{i}.weights [N,K] f32 (0 where not sent)
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "model/model.h"

namespace moe {

// What a record says of the run that it was made in.
struct RecordInfo {
  std::string recipe;
  std::string routing;    // how it was evaluated, as --routing spells it
  std::string dtype;      // of the products
  std::string tokenizer;  // Tokenizer::spec
  int64_t layers = 0;     // of the model, dense ones too
  int64_t experts = 0;    // E
  int64_t slots = 0;      // K of the matrices
  int64_t window = 0;     // tokens
  int64_t windows = 0;    // S
};

// Writes one, window by window, straight to the disk; without commit() nothing is left.
class RoutingRecorder {
 public:
  // `ids` [windows * window]. What the model says of itself is filled into `info`: recipe, layers
  // and experts.
  RoutingRecorder(const std::string& path, const ModelConfig&, RecordInfo info,
                  std::span<const int32_t> ids);
  void add(int64_t window, int64_t layer, const MoeLayer::Saved&);
  void commit() { file_->commit(); }

 private:
  int64_t window_ = 0;
  std::vector<int32_t> experts_;  // [window,K]
  std::vector<float> weights_;    // [window,K]
  std::unique_ptr<SafetensorsWriter> file_;
};

class RoutingRecord {
 public:
  static RoutingRecord open(const std::string& path) {
    return RoutingRecord(Safetensors::open(path));
  }
  static RoutingRecord from_bytes(std::span<const std::byte> bytes, const std::string& where) {
    return RoutingRecord(Safetensors::from_bytes(bytes, where));
  }

  const RecordInfo& info() const { return info_; }
  const std::vector<int64_t>& moe_layers() const { return moe_layers_; }  // rising
  std::span<const int32_t> ids() const;                                   // [N]
  // Choices of the MoE layers in order, [window,K] each; a view of the file.
  std::vector<Tensor> window(int64_t w) const;

  // Fail, naming what differs: layers, experts or slots; the first token that is another one. A
  // text may be a part of the record.
  void check_model(const ModelConfig&, const RoutingSpec&) const;
  void check_text(std::span<const int32_t> ids, std::string_view tokenizer) const;

 private:
  explicit RoutingRecord(Safetensors file);
  void read_tensors();

  Safetensors file_;
  RecordInfo info_;
  std::vector<int64_t> moe_layers_;
};

// How far the routers of a replay would have chosen as recorded.
class Agreement {
 public:
  struct Layer {
    int64_t layer = 0;
    int64_t recorded = 0;  // pairs
    int64_t own = 0;       // pairs that the model's router chose
    int64_t both = 0;
    int64_t places = 0;  // tokens * experts

    // The share of the recorded pairs that the model would have chosen, and what choosing as many
    // at random would give: K/E where every token takes K.
    double share() const {
      return recorded > 0 ? static_cast<double>(both) / static_cast<double>(recorded) : 1;
    }
    double chance() const {
      return places > 0 ? static_cast<double>(own) / static_cast<double>(places) : 1;
    }
  };
  std::vector<Layer> layers;  // MoE layers in order
  int64_t tokens = 0;
  int64_t tokens_alike = 0;  // whose recorded choices the model would have made in every layer

  // One MoE layer of a window; all layers of a window before the next one.
  void add(int64_t window, int64_t layer, const MoeLayer::Saved&, int64_t experts);
  // After the last window.
  void finish();

 private:
  int64_t window_ = -1;
  std::vector<char> alike_;  // [window]
};

}  // namespace moe
