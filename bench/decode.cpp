// What writing a text costs, by the shapes of two published models with random weights of a file's
// type, bound as a loader binds them: the first and the second prompt of 512, then tokens one by
// one, and what each product of a token takes alone. Bytes are the weights' that a token touches,
// as the file holds them.
//   bench_decode [olmoe|qwen3moe|smollm2|both] [bf16|q8_0|q4_0|f32|f16|q4_1|all] [threads=2]
//     [tokens=64] [prompt=512]
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/threads.h"
#include "infer/session.h"
#include "median.h"
#include "moe/recipes/recipes.h"
#include "ops/memory.h"
#include "ops/ops.h"

namespace {

using namespace moe;
using bench::median;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ModelConfig shape_named(const std::string& name) {
  ModelConfig c;
  const bool olmoe = name == "olmoe";
  c.vocab = 49152;
  c.width = 2048;
  c.layers = 4;
  c.heads = olmoe ? 16 : 32;
  c.kv_heads = olmoe ? 16 : 4;
  c.head_width = 128;
  c.context = 4096;
  c.qk_norm = olmoe ? QkNorm::full : QkNorm::head;
  c.expert_width = olmoe ? 1024 : 768;
  c.routing = default_options(find_recipe("olmoe"), olmoe ? 64 : 128, 8, 2);
  if (name != "smollm2") return c;
  c.width = 576;
  c.layers = c.dense_first = 30;
  c.routing = {};
  c.heads = 9;
  c.kv_heads = 3;
  c.head_width = 64;
  c.qk_norm = QkNorm::none;
  c.dense_width = 1536;
  return c;
}

// Numbers of no meaning but of a trained model's size, so that nothing overflows and routers spread
// their tokens.
void fill_weight(Run& run, Tensor t) {
  const int64_t block = block_of(t.dtype).bytes, blocks = t.bytes() / block;
  auto* data = static_cast<unsigned char*>(t.data);
  parallel_for(run.threads, blocks, 1 << 14, [&](int64_t begin, int64_t end, int) {
    uint64_t state = static_cast<uint64_t>(begin) * 0x9E3779B97F4A7C15u + 1;
    const auto next = [&] {
      return state = state * 6364136223846793005u + 1442695040888963407u,
             static_cast<uint32_t>(state >> 33);
    };
    for (int64_t b = begin; b < end; ++b) {
      unsigned char* to = data + b * block;
      if (!is_quantised(t.dtype)) {
        const float x = 0.07f * (static_cast<float>(next() & 0xFFFF) / 65536 - 0.5f);
        if (t.dtype == DType::f32) std::memcpy(to, &x, 4);
        const uint16_t half = t.dtype == DType::f16 ? f32_to_f16(x) : to_bf16(x).bits;
        if (block == 2) std::memcpy(to, &half, 2);
        continue;
      }
      for (int64_t i = 0; i < block; ++i) to[i] = static_cast<unsigned char>(next());
      const uint16_t scale = f32_to_f16(t.dtype == DType::q8_0 ? 0.0003f : 0.004f);
      std::memcpy(to, &scale, 2);
      const uint16_t least = f32_to_f16(-8 * 0.004f);
      if (t.dtype == DType::q4_1) std::memcpy(to + 2, &least, 2);
    }
  });
}

std::unique_ptr<Model> random_model(Run& run, const ModelConfig& config, DType dtype) {
  auto model = std::make_unique<Model>(config, Storage::bound);
  for (Param* p : model->params()) {
    const bool router = p->part == Part::router, embedding = p->part == Part::embedding;
    const DType type = !p->is_matrix() || router           ? DType::f32
                       : embedding && dtype != DType::bf16 ? DType::f32
                                                           : dtype;
    Tensor value = p->value;
    value.dtype = type;
    value.row_bytes = bytes_of(type, value.cols());
    value.data = model->allocate(DType::bf16, {value.bytes() / 2}).data;
    if (p->role == Role::norm) std::fill_n(value.as<float>(), value.numel(), 1.0f);
    else fill_weight(run, value);
    model->bind(*p, value);
  }
  return model;
}

// Of the weights that one token touches, in the file's types.
double token_bytes(const Model& model) {
  double bytes = 0;
  const ModelConfig& c = model.config();
  for (const Param* p : model.params()) {
    if (p->part == Part::embedding) continue;
    const bool bank = p->value.rank == 3 && p->value.shape[0] > 1;
    bytes +=
        static_cast<double>(p->value.bytes()) *
        (bank ? static_cast<double>(c.routing.top_k) / static_cast<double>(c.routing.experts) : 1);
  }
  return bytes;
}

// One kind of product of a token.
struct Piece {
  const char* name;
  Part part;
  std::vector<ParamKind> factors;
  bool wide;
  double seconds = 0, bytes = 0;  // over all layers
};

double run_piece(Run& run, Model& model, const Piece& piece, int64_t layer,
                 std::span<const int64_t> experts) {
  const int64_t rows = experts.back();
  std::vector<Param*> w;
  for (const ParamKind kind : piece.factors)
    w.push_back(model.find(piece.part, kind, piece.part == Part::lm_head ? -1 : layer));
  ArenaScope scope(run.saved);
  const DType out = piece.wide ? DType::f32 : run.compute;
  const Tensor x = run.saved.alloc_zeroed(run.compute, {rows, w[0]->value.cols()}),
               y = run.saved.alloc(out, {rows, w[0]->value.shape[w[0]->value.rank - 2]});
  const Tensor second = run.saved.alloc(out, {rows, y.cols()});
  const auto start = Clock::now();
  if (w.size() == 2) ops::matmul_forward(run, {{*w[0], y}, {*w[1], second}}, x, experts);
  else if (w[0]->value.dtype == DType::f32) ops::matmul_forward_f32(run, y, x, *w[0], experts);
  else ops::matmul_forward(run, y, x, *w[0], experts);
  return since(start);
}

// The products of a token in the order of the model, so that each finds its weights out of the
// caches; medians over rounds.
std::vector<Piece> time_pieces(Run& run, Model& model, int64_t rounds) {
  const ModelConfig& c = model.config();
  const bool dense = c.moe_layer_count() == 0;
  const Part ffn = dense ? Part::dense_ffn : Part::experts;
  std::vector<Piece> pieces = {Piece{"q", Part::attention, {ParamKind::q}, false},
                               Piece{"k", Part::attention, {ParamKind::k}, false},
                               Piece{"v", Part::attention, {ParamKind::v}, false},
                               Piece{"o", Part::attention, {ParamKind::o}, true},
                               Piece{"router", Part::router, {ParamKind::weight}, true},
                               Piece{"gate, up", ffn, {ParamKind::gate, ParamKind::up}, false},
                               Piece{"down", ffn, {ParamKind::down}, true},
                               Piece{"head", Part::lm_head, {ParamKind::weight}, true}};
  if (dense) pieces.erase(pieces.begin() + 4);
  std::vector<std::vector<double>> times(pieces.size());
  const std::vector<int64_t> one{0, 1};
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<double> sums(pieces.size());
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      std::vector<int64_t> experts(static_cast<size_t>(dense ? 1 : c.routing.experts) + 1);
      if (dense) experts[1] = 1;
      for (int64_t k = 0; !dense && k < c.routing.top_k; ++k)
        experts[static_cast<size_t>((k * 7 + round * 5 + layer) % c.routing.experts) + 1] = 1;
      std::partial_sum(experts.begin(), experts.end(), experts.begin());
      for (size_t p = 0; p < pieces.size(); ++p)
        if (pieces[p].part != Part::lm_head || layer + 1 == c.layers)
          sums[p] += run_piece(run, model, pieces[p], layer, pieces[p].part == ffn ? experts : one);
    }
    if (round >= rounds / 2)  // by then most experts have been packed
      for (size_t p = 0; p < pieces.size(); ++p) times[p].push_back(sums[p]);
  }
  for (size_t p = 0; p < pieces.size(); ++p) {
    pieces[p].seconds = median(times[p]);
    for (const Param* w : model.params())
      if (w->part == pieces[p].part && w->is_matrix() &&
          std::ranges::find(pieces[p].factors, w->kind) != pieces[p].factors.end())
        pieces[p].bytes += static_cast<double>(w->value.bytes()) *
                           (w->part == Part::experts ? static_cast<double>(c.routing.top_k) /
                                                           static_cast<double>(c.routing.experts)
                                                     : 1);
  }
  return pieces;
}

// Seconds. A token after the prompt also reads the keys and values of all before it, one after
// eight tokens next to none. Rates of reading memory are taken in between, because a shared
// machine's change from second to second: each stretch of tokens is held against the rates before
// and after it.
struct Speed {
  double first_prompt = 0, second_prompt = 0;
  std::vector<double> after_prompt, token, rate;  // by stretch; one rate more
};

double time_tokens(Session& session, std::span<const float>& logits, int64_t tokens) {
  std::vector<double> times;
  for (int64_t i = 0; i < tokens; ++i) {
    // Not the likeliest: a model without meaning soon repeats itself, and finds its experts in the
    // cache.
    const auto id =
        static_cast<int32_t>((session.length() * 7919 + 17) % static_cast<int64_t>(logits.size()));
    const auto step = Clock::now();
    logits = session.decode({&id, 1});
    times.push_back(since(step));
  }
  return median(times);
}

Speed time_session(Run& run, Model& model, int64_t prompt, int64_t tokens) {
  constexpr int64_t kStretches = 6;
  std::vector<int32_t> ids(static_cast<size_t>(prompt));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(model.config().vocab));
  Speed speed;
  for (double* to : {&speed.first_prompt, &speed.second_prompt}) {
    Session session(model, run, prompt);
    const auto start = Clock::now();
    session.prefill(ids);
    *to = since(start);
  }
  Session after(model, run, prompt + tokens + kStretches),
      alone(model, run, 8 + tokens + kStretches);
  auto logits = after.prefill(ids),
       few = alone.prefill(std::span(ids).first(std::min<size_t>(8, ids.size())));
  speed.rate.push_back(ops::measure_read_bandwidth(run, 0.1));
  for (int64_t i = 0; i < kStretches; ++i) {
    speed.token.push_back(time_tokens(alone, few, tokens / kStretches + 1));
    speed.rate.push_back(ops::measure_read_bandwidth(run, 0.1));
    speed.after_prompt.push_back(time_tokens(after, logits, tokens / kStretches + 1));
  }
  return speed;
}

void measure(const std::string& shape, DType dtype, int threads, int64_t tokens, int64_t prompt) {
  Run run(threads, dtype == DType::f32 || !ops::has_bf16_products() ? DType::f32 : DType::bf16);
  const ModelConfig config = shape_named(shape);
  const auto model = random_model(run, config, dtype);
  const double bytes = token_bytes(*model);
  const Speed speed = time_session(run, *model, prompt, tokens);
  const double best = median(speed.rate), token = median(speed.token);
  std::vector<double> shares;
  for (size_t i = 0; i < speed.token.size(); ++i)
    shares.push_back(bytes / speed.token[i] / ((speed.rate[i] + speed.rate[i + 1]) / 2));
  fmt::print(
      "{:9} {:5}  prompt of {}: first {:.2f} s ({:.0f} tok/s), second {:.2f} s ({:.0f} tok/s)   "
      "packed {} MiB\n",
      shape, name_of(dtype), prompt, speed.first_prompt,
      static_cast<double>(prompt) / speed.first_prompt, speed.second_prompt,
      static_cast<double>(prompt) / speed.second_prompt, ops::copies_taken(model->params()) >> 20);
  fmt::print(
      "                 a token {:.2f} ms, {:.1f} tok/s, {:.0f} MB, {:.1f} GB/s; of the read rate "
      "{:.1f}% ({:.1f}..{:.1f}), {:.1f} GB/s ({:.1f}..{:.1f})\n",
      token * 1e3, 1 / token, bytes / 1e6, bytes / token / 1e9, 100 * median(shares),
      100 * *std::min_element(shares.begin(), shares.end()),
      100 * *std::max_element(shares.begin(), shares.end()), best / 1e9,
      *std::min_element(speed.rate.begin(), speed.rate.end()) / 1e9,
      *std::max_element(speed.rate.begin(), speed.rate.end()) / 1e9);
  fmt::print("                 a token after the prompt {:.2f} ms\n",
             median(speed.after_prompt) * 1e3);
  double sum = 0;
  for (const Piece& p : time_pieces(run, *model, 60)) {
    sum += p.seconds;
    fmt::print("                   {:9} {:7.3f} ms {:6.1f} GB/s {:5.1f}%\n", p.name,
               p.seconds * 1e3, p.bytes / p.seconds / 1e9, 100 * p.bytes / p.seconds / best);
  }
  fmt::print("                   {:9} {:7.3f} ms\n", "the rest", (token - sum) * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  const std::string shape = argument(1, "both"), dtype = argument(2, "all");
  for (const std::string& s :
       {std::string("olmoe"), std::string("qwen3moe"), std::string("smollm2")})
    for (const DType d :
         {DType::bf16, DType::q8_0, DType::q4_0, DType::f32, DType::f16, DType::q4_1})
      if ((shape == s || (shape == "both" && s != "smollm2")) &&
          (dtype == name_of(d) ||
           (dtype == "all" && d != DType::f32 && d != DType::f16 && d != DType::q4_1)))
        measure(s, d, std::atoi(argument(3, "2").c_str()), std::atoll(argument(4, "64").c_str()),
                std::atoll(argument(5, "512").c_str()));
}
