#include "hub/adapter_modules.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/adapters.h"
#include "tensor/quant.h"

namespace moe {
namespace {

constexpr std::string_view kWeight = ".weight";

Member member_of(const FileTensor::Piece& piece, int64_t expert) {
  const Tensor& w = piece.param->value;
  return {piece.param, expert, w.shape[w.rank - 2], w.cols(), 0, piece.order};
}

}  // namespace

std::vector<Module> modules_of(const std::vector<FileTensor>& map) {
  std::vector<Module> modules;
  for (const FileTensor& tensor : map) {
    if (tensor.alias || tensor.pieces.empty()) continue;
    const bool matrices =
        std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                    [](const FileTensor::Piece& p) { return p.param->is_matrix(); });
    if (!matrices) continue;
    std::string name = tensor.name;
    if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
    const FileTensor::Piece& first = tensor.pieces[0];
    if (first.param->value.rank == 3 && first.expert < 0) {
      for (int64_t e = 0; e < first.param->value.shape[0]; ++e)
        modules.push_back({fmt::format("{}.{}", name, e), {member_of(first, e)}});
      continue;
    }
    // Of a bank whose experts' matrices are stacked each expert is a module.
    const bool bank = tensor.shape.size() == 3;
    for (const FileTensor::Piece& piece : tensor.pieces) {
      const std::string own = bank ? fmt::format("{}.{}", name, piece.expert) : name;
      if (modules.empty() || modules.back().name != own) modules.push_back({own, {}});
      modules.back().members.push_back(member_of(piece, std::max<int64_t>(piece.expert, 0)));
    }
  }
  for (Module& module : modules)
    for (Member& member : module.members) {
      member.begin = member.order.apart > 0 ? 0 : module.out;
      module.out += member.rows;
    }
  return modules;
}

namespace {

// Empty: the member has no pair.
Tensor half_of(const Pairs& of, const Member& m, Tensor LowRank::*half) {
  const auto found = of.find(m.param);
  if (found == of.end()) return {};
  const LowRank& low = *found->second;
  const Tensor& all = low.*half;
  const int64_t pair = pair_of(low.experts, m.expert);
  if (pair < 0) return {};
  return all.matrix(pair);
}

Tensor zeros(const Room& room, int64_t rows, int64_t cols) {
  room->assign(static_cast<size_t>(rows * cols), 0.0f);
  return Tensor(room->data(), DType::f32, {rows, cols});
}

}  // namespace

int64_t rank_of(const Module& module, const Pairs& of) {
  int64_t rank = 0;
  for (const Member& m : module.members)
    if (const Tensor a = half_of(of, m, &LowRank::a); !a.empty()) rank += a.rows();
  return rank;
}

Tensor stacked_a(const Module& module, const Pairs& of, int64_t rank, const Room& room) {
  const Tensor whole = zeros(room, rank, module.members[0].cols);
  int64_t row = 0;
  for (const Member& m : module.members) {
    const Tensor a = half_of(of, m, &LowRank::a);
    if (a.empty()) continue;
    std::copy_n(a.as<float>(), a.numel(), whole.row<float>(row));
    row += a.rows();
  }
  return whole;
}

Tensor stacked_b(const Module& module, const Pairs& of, int64_t rank, const Room& room) {
  const Tensor whole = zeros(room, module.out, rank);
  int64_t col = 0;
  for (const Member& m : module.members) {
    const Tensor b = half_of(of, m, &LowRank::b);
    if (b.empty()) continue;
    for (int64_t o = 0; o < b.rows(); ++o)
      std::copy_n(b.row<float>(o), b.cols(), whole.row<float>(m.row_in_file(o)) + col);
    col += b.cols();
  }
  return whole;
}

namespace {

// A pair, as the matrix of a parameter that it is added to has it.
struct Share {
  const FoundPair* pair;
  const Member* member;
};

bool adds_nothing(const Share& s) {
  for (int64_t r = 0; r < s.member->rows; ++r)
    for (int64_t k = 0; k < s.pair->rank; ++k)
      if (s.pair->b[static_cast<size_t>(s.member->row_in_file(r) * s.pair->rank + k)] != 0)
        return false;
  return true;
}

// Whether two matrices of a bank, whose rows lie alike, are given the same pair.
bool is_same_pair(const Share& x, const Share& y) {
  if (x.pair->rank != y.pair->rank || x.pair->scale != y.pair->scale || x.pair->a != y.pair->a)
    return false;
  for (int64_t r = 0; r < x.member->rows; ++r)
    for (int64_t k = 0; k < x.pair->rank; ++k)
      if (x.pair->b[static_cast<size_t>(x.member->row_in_file(r) * x.pair->rank + k)] !=
          y.pair->b[static_cast<size_t>(y.member->row_in_file(r) * y.pair->rank + k)])
        return false;
  return true;
}

// B has the factor in it, so that pairs of one bank may have their own. Of a bank those that add
// nothing take no memory, unless none adds anything, and those that are all the same take it once.
void hang(Adapters& adapters, Param& param, std::vector<Share> shares) {
  TermShape shape;
  if (param.value.rank == 3 && !std::all_of(shares.begin(), shares.end(), adds_nothing)) {
    std::erase_if(shares, adds_nothing);
    for (const Share& s : shares) shape.experts.push_back(s.member->expert);
    std::sort(shape.experts.begin(), shape.experts.end());
    shape.shared = shares.size() > 1 &&
                   std::all_of(shares.begin(), shares.end(),
                               [&](const Share& s) { return is_same_pair(s, shares[0]); });
  }
  for (const Share& s : shares) shape.rank = std::max(shape.rank, s.pair->rank);
  Adapter& adapter = adapters.add(param, shape, false);
  for (const auto& [pair, member] : shares) {
    const int64_t at = adapter.term.pair_of(member->expert);
    const Tensor a = adapter.a.expert(at), b = adapter.b.expert(at);
    std::copy(pair->a.begin(), pair->a.end(), a.as<float>());
    for (int64_t r = 0; r < member->rows; ++r)
      for (int64_t k = 0; k < pair->rank; ++k)
        b.row<float>(r)[k] =
            pair->scale * pair->b[static_cast<size_t>(member->row_in_file(r) * pair->rank + k)];
  }
}

}  // namespace

std::vector<float> floats_of(const Tensor& t) {
  std::vector<float> out(static_cast<size_t>(t.numel()));
  for (int64_t r = 0; r < t.rows(); ++r)
    dequantise(out.data() + r * t.cols(), static_cast<const char*>(t.data) + r * t.row_bytes,
               t.dtype, t.cols());
  return out;
}

AttachedAdapter hang_pairs(Model& model, const std::vector<FoundPair>& pairs) {
  AttachedAdapter report{.terms = std::make_shared<Adapters>()};
  std::map<const Param*, std::vector<Share>> shares;
  for (const FoundPair& pair : pairs)
    for (const Member& member : pair.module->members) {
      shares[member.param].push_back({&pair, &member});
      ++report.matrices;
    }
  for (Param* param : model.params())
    if (const auto of = shares.find(param); of != shares.end())
      hang(*report.terms, *param, of->second);
  model.keep(report.terms);
  return report;
}

}  // namespace moe
