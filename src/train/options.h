// What a user chooses about a training run, apart from the model. Kept in every checkpoint;
// resuming compares it field by field.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "options/common.h"
#include "options/fields.h"
#include "tensor/dtype.h"
#include "text/loader.h"

namespace moe {

enum class ScheduleKind { cosine, linear, constant, wsd };
std::string_view name_of(ScheduleKind);

// What moves the hidden matrices (model/parameters.h); all else AdamW moves in any case.
enum class OptimizerKind { adamw, muon };
std::string_view name_of(OptimizerKind);

// Which parameters a run moves; all others keep the values they start from, and cost no gradient
// and no moments.
enum class Tune {
  all,
  router,       // the routers' matrices, biases and scales
  lora,         // adapters of the matrices of attention, experts, shared experts and dense layers
                // (train/trainable.h)
  lora_router,  // adapters and routers
  lora_norms,   // adapters and norms
  lora_router_norms,  // adapters, routers and norms
  experts_hot,        // adapters of those experts that the text uses most (train/hot_experts.h)
};
std::string_view name_of(Tune);
bool tunes_adapters(Tune);
// Whether the parameters of that part are trained as they are, not by adapters.
bool tunes_whole(Tune, Part);

// The experts of a layer that Tune::experts_hot trains.
struct HotLayer {
  int64_t layer = 0;
  std::vector<int64_t> experts;  // ascending, at least one
  double share = 0;              // of the layer's rows that they got when it was measured
  bool operator==(const HotLayer&) const = default;
};

// The first `until` steps went by a schedule of `steps`.
struct Replan {
  int64_t until = 0, steps = 0;
  bool operator==(const Replan&) const = default;
};

struct TrainOptions {
  int64_t context = 256;          // tokens a row
  int64_t batch = 8;              // rows a micro-batch; of preference pairs: pairs
  int64_t accumulate = 1;         // micro-batches a step
  int64_t steps = 1000;           // the run ends after this many
  std::vector<Replan> replans;    // how `steps` came to be what it is, where it was fitted to the
                                  // time again and again; in order
  double lr = 1e-3;               // at the end of the warm-up
  std::optional<double> min_lr;   // at the last step; absent: lr / 10, of wsd 0
  std::optional<int64_t> warmup;  // steps; absent: a tenth of the steps, at most 100
  ScheduleKind schedule = ScheduleKind::cosine;
  double cooldown = 0.2;  // of wsd: the share of the steps, at the end, in which the rate falls
  std::map<std::string, double> lr_times;  // by part of the model (train/trainable.h): how many
                                           // times the rate it learns at; not named: 1
  int64_t lr_width = 0;  // the width that `lr` was found at (train/trainable.h); 0: this one's
  OptimizerKind optimizer = OptimizerKind::adamw;
  double momentum = 0.95;  // of Muon
  double weight_decay = 0.1;
  bool decay_all = false;  // also norms and biases (OLMoE's paper); else matrices only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip = 1;           // largest norm of the whole gradient; 0: no limit
  uint64_t seed = 1;         // of the weights, the noise, dropout and the order of the data
  DType dtype = DType::f32;  // of the products; masters, gradients and moments are f32
  Shuffle shuffle = Shuffle::epoch;
  Mix mix;              // weights of domains; not named: 1
  double hold_out = 0;  // share of the documents that is kept from training
  Tune tune = Tune::all;
  int64_t lora_rank = 8;
  double lora_alpha = 16;     // an adapter counts alpha / rank times
  bool lora_shared = false;   // one adapter for all experts of a bank in place of one for each
  double hot_share = 0.5;     // of a layer's rows that its hot experts get together, at least
  std::vector<HotLayer> hot;  // of each MoE layer; empty: not measured yet
  // Beside adapters: tokens whose rows of the embedding, and of a head of its own, are trained as
  // they are; by name or number (text/tokenizer.h).
  std::vector<std::string> tune_tokens;
  std::vector<int64_t> token_ids;  // theirs, ascending; empty: not looked up yet
  // of the divergence from a teacher in the loss; without a teacher of no meaning
  double teacher_weight = 0.5;
  double dpo_beta = 0.1;  // of preference pairs (train/preference.h); with other text of no meaning
  bool pairs = false;     // found out: the text is preference pairs, and `batch` counts those

  // What follows changes no bit of the weights (threads and device: only the last ones).
  bool recompute = false;  // keep each block's input only and run its forward again in backward
  int64_t save_every = 0;  // steps between checkpoints; 0: at the end only
  std::optional<int64_t> eval_every;  // steps between evaluations, where there is held-out text; 0:
                                      // at the end only; absent: usual_eval_every()
  bool keep_best = false;             // OUT/best holds the weights of the lowest held-out loss
  bool keep_stable = false;           // OUT/stable holds the run as it was when the cooldown began
  double minutes = 0;                 // of training that `steps` was fitted to; 0: it was chosen
  // predictions an evaluation makes at most; 0: all of the held-out text
  int64_t eval_tokens = 65536;
  DeviceKind device = DeviceKind::cpu;
  int threads = 0;  // 0: all cores
  // Processes that one copy of the experts lies on (comm/layout.h); of a launch, not of a run.
  int64_t expert_parallel = 1;
};

// "optimizer", for those who estimate what training takes.
void add_optimizer(FieldList&, OptimizerKind&, std::string_view help);
// Their one list: flags, JSON, what a checkpoint keeps and what two runs are compared by.
FieldList fields(TrainOptions&);

// Of a micro-batch, at most `context` tokens each: a pair is two.
constexpr int64_t rows_of(const TrainOptions& o) { return o.pairs ? 2 * o.batch : o.batch; }

// Ten evaluations a run, or so many that they compute a tenth of what its steps do at most; 0: not
// even two.
int64_t usual_eval_every(const TrainOptions&);

constexpr int64_t kMostSteps = int64_t{1} << 32;
// Usage errors that name the field.
void validate(const TrainOptions&);
// Absent values filled in: min_lr, warmup, eval_every, threads.
TrainOptions resolved(TrainOptions);
// Of a run whose steps are still to be fitted to its minutes: their number has no meaning yet, and
// becomes one that any warm-up fits into.
void leave_room_for_warmup(TrainOptions&);

// One phrase, such as "lr was 0.001 and is now 0.002", the fields marked, for each one that differs
// and that the mathematics depends on. Both resolved.
std::vector<std::string> mathematical_differences(TrainOptions saved, TrainOptions wanted);

}  // namespace moe
