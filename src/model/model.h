// The model: embedding, blocks, final norm, head. One forward serves training, evaluation and
// generation; who keeps Saved decides which it is.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/last_rows.h"
#include "model/lm_head.h"
#include "model/on_device.h"
#include "model/parameters.h"

namespace moe {

// One MoE layer's routing in one forward, as far as the pass wants it; a copy, independent of
// arenas.
struct LayerRouting {
  int64_t layer = 0;
  std::vector<int32_t> counts;          // [E] pairs per expert before any drop
  std::vector<int32_t> balance_counts;  // [E] what the balance loss counts; empty without one
  std::vector<float> cutoff;  // [E] the lowest scores that experts took; empty unless they chose
  int64_t dropped = 0;
  RoutingLosses losses;
};

// One MoE layer's routing over a whole optimizer step: what its buffers move by.
struct LayerStep {
  std::vector<int64_t> counts;  // [E] pairs per expert before any drop, of all micro-batches
  std::vector<double> cutoff;  // [E] mean over the micro-batches; empty where experts do not choose
};

// Views into run.saved, from one forward until its backward.
struct ModelSaved {
  Pass pass;
  std::vector<Tensor> h;  // [N,D] f32, or [N,SD] of S residual streams: input of each block, then
                          // of the final norm (with Keep::nothing two buffers that alternate)
  std::vector<Block::Saved> blocks;
  HyperConnection::Saved end_streams;
  Norm::Saved final_norm;
  Tensor hidden;  // [N,D] A, after the final norm; of Pass::last_rows alone where it has some
  LmHeadSaved lm_head;
  // MoE layers in order; none where the pass wants nothing of them
  std::vector<LayerRouting> routing;
};

// Where a new model's parameters lie.
enum class Storage {
  owned,  // f32, zero, in the Model's memory
  bound,  // nowhere yet: whoever loads gives each parameter its memory by bind()
};

class Model {
 public:
  // Validates. `experts`: processes that hold a share of each layer's experts each (moe/plan.h);
  // every forward and backward is then collective, of passes of their own. Fails (usage) where they
  // are more than there are experts.
  explicit Model(ModelConfig, Storage = Storage::owned, const comm::Group& experts = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  // Whose processes hold the experts; of this process alone where all are here.
  const comm::Group& experts() const { return experts_; }
  // Of the losses that training adds; they change no parameter.
  void set_losses(const RoutingLosses& coef) { config_.routing.coef = coef; }
  // Every parameter once, in the order of the list (model/parameters.h).
  const std::vector<Param*>& params() const { return params_; }
  // Null where the model has no such parameter.
  Param* find(Part, ParamKind, int64_t layer = -1, bool bias = false) const;
  // What in this model is what `other` is in its own.
  Param* find(const Param& other) const {
    return find(other.part, other.kind, other.layer, other.is_bias());
  }
  void initialise(uint64_t seed);  // to the same numbers wherever they lie
  // Gives a parameter of a bound model its numbers: a view [shape of param] of any dtype, or for a
  // bank the places of its experts. Memory that the Model does not own stays alive by keep().
  void bind(Param&, Tensor value, std::vector<const void*> places = {});
  void keep(std::shared_ptr<const void> owner) { kept_.push_back(std::move(owner)); }
  // Memory of the Model's own, for what has to be copied from a file.
  Tensor allocate(DType, std::initializer_list<int64_t> shape);
  // [shape of `like`], of up to three dimensions.
  Tensor allocate_like(const Tensor& like, DType);
  // The numbers of a bound parameter as f32 in the Model's own memory, where they may be written.
  // Nothing where they are.
  void own(Param&, int threads = 1);
  // Gives every parameter that is trained, and that `wanted` names where it is given, a zero
  // gradient; the others are frozen. Fails for a bound one that is not owned.
  void enable_grads(const std::function<bool(const Param&)>& wanted = {});

  // Its parameters to a device, or back to the CPU (null), where they come as they are by then.
  // Gradients that are enabled behind it lie on the device, and stay there.
  void move_to(Device* device);
  // Null: the CPU.
  Device* device() const { return is_on_device_ ? &on_device_->device() : nullptr; }

  // Fills `saved`; saved.hidden [N,D], or [n,D] of n = sum of Pass::last_rows, holds the result.
  void forward(Run&, const Pass&, ModelSaved& saved);
  // Whether the last block is run for Pass::last_rows alone where it may be.
  bool spares_last_block() const { return blocks_.back()->leaves_only_keys(); }
  // out [n,V] f32; hidden [n,D] rows of saved.hidden
  void logits(Run&, Tensor out, Tensor hidden);
  // nll [N] f32
  void loss_forward(Run&, Tensor nll, std::span<const int32_t> targets, ModelSaved& saved);
  // The same beside a teacher of the same vocabulary: kl [N] f32 too, and backward is of (1 -
  // share) nll + share kl.
  void loss_forward(Run&, Tensor nll, Tensor kl, std::span<const int32_t> targets,
                    const LmHeadTeacher& teacher, ModelSaved& saved);
  // Adds the gradient of scale * sum(weights . loss) + sum over MoE layers of coef . losses to
  // every gradient; weights [N], empty: all 1. Consumes `saved`.
  void backward(Run&, std::span<const int32_t> targets, float scale, const RoutingLosses& coef,
                ModelSaved& saved, std::span<const float> weights = {});
  // After an optimizer step: moves selection biases and thresholds. `layers`: MoE layers in order.
  void end_step(const Run&, const RoutingSpec& training, std::span<const LayerStep> layers);

  // For who walks the layers one by one, as a conversion does.
  Block& block(int64_t layer) { return *blocks_[static_cast<size_t>(layer)]; }
  // h [N,D] f32: the input of block 0
  void embed(Run&, Tensor h, const Batch&);
  // Fills in what attention turns by at the batch's positions, nothing where they are not rotary,
  // and makes room for what sparse attention chooses, where a token stands so far back. Views into
  // `memory`.
  void prepare(Run&, Arena& memory, Pass&) const;
  // The head. Its matrix is its own or the embedding's.
  LmHead lm_head();

 private:
  class Told;
  void take(Param&);
  void* zeroed_like(const Tensor& shape);
  // h [N,D] f32: what the embedding gives, before its norm.
  void look_up(Run&, Tensor h, const Batch&);
  // Of what look_up gives, from dh [N,D] f32 of its norm, in scratch of the caller's.
  Tensor before_embedding_norm(Run&, Tensor dh, const Batch&);
  void tell(const Run&, ModelSaved&, Told&, const Block&, const Block::Saved&,
            const Tensor& h) const;
  // Numbers of a token's residual stream, or of all of them.
  int64_t stream_width() const {
    return config_.width * std::max<int64_t>(1, config_.hyper.streams);
  }
  // h f32: what the embedding gives, in each stream.
  void begin(Run&, Tensor h, const Pass&);
  // dh of begin's h, in scratch of the caller's.
  void begin_backward(Run&, Tensor dh, const Pass&);
  // The last block's output for the rows of `last`, in run.saved, from its input h of all.
  Tensor end_of_last(Run&, Tensor h, const CutRows&, ModelSaved&);
  // saved.hidden from the last block's output.
  void finish(Run&, Tensor last, ModelSaved&);
  // dh of finish's `last`, written.  dhidden [N,D] f32
  void finish_backward(Run&, Tensor dh, Tensor dhidden, const ModelSaved&);

  ModelConfig config_;
  Storage storage_;
  comm::Group experts_;
  Arena memory_;                         // parameters and gradients
  std::unique_ptr<OnDevice> on_device_;  // null: never moved
  bool is_on_device_ = false;
  std::vector<std::shared_ptr<const void>> kept_;  // what bound parameters are views of
  Param embedding_;                                // [V,D]
  Param positions_;                                // [context,D], learned positions only
  // of texts that stretch: long_rope_, absent where they turn as all others
  std::optional<ops::RopeFrequencies> rope_, window_rope_, long_rope_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::optional<HyperConnection> end_streams_;
  Norm final_norm_;
  Param lm_head_;                   // [V,D], untied only
  Param lm_head_bias_;              // [V], absent without
  std::vector<Block*> moe_blocks_;  // MoE layers in order
  std::vector<Param*> params_;
};

// Models are on a device, or on the CPU (null), for as long as this lives; then where they were.
class ModelsOn {
 public:
  ModelsOn(Device* where, std::initializer_list<Model*> models);  // some of which may be null
  ~ModelsOn();
  ModelsOn(const ModelsOn&) = delete;
  ModelsOn& operator=(const ModelsOn&) = delete;

 private:
  struct Before {
    Model* model;
    Device* device;
  };
  std::vector<Before> before_;
};

}  // namespace moe
