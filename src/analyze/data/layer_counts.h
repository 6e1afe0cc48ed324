// What one MoE layer did over many windows of text, counted as they come, and the figures that the
// counts give. All counts are whole numbers and all other sums are doubles in token order, so the
// same texts give the same bits. Memory is bounded by E^2 and by the ids that occur, never by the
// length of the texts.
//
// Words used in the definitions: N tokens, E experts, K choices a token, C_n the experts that token
// n chose: after a second-choice policy, before any drop. c_e the tokens that chose e, P = sum_e
// c_e. A score s_ne lies in [0, 1]: softmax and sigmoid scores as they are, raw logits through a
// softmax over all experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analyze/data/report.h"

namespace moe {

// One layer's routing of one window, a copy of what a forward told.
struct RoutedRows {
  int64_t tokens = 0, slots = 0;
  std::vector<int32_t> choice;  // [N * slots] an expert of each slot
  std::vector<int32_t> chosen;  // [N * slots] 1 where the slot's expert is in C_n
  std::vector<int32_t> kept;    // [N * slots] 1 where it found room too
  std::vector<float> weights;   // [N * slots] combine weight; 0 where not kept
  std::vector<float> scores;    // [N * E] s; empty without scores (hash)
};

// The ids that a window's tokens are looked at by; -1: none.
struct WindowIds {
  std::span<const int32_t> input;      // [N]
  std::span<const int32_t> target;     // [N] the id that follows within the window
  std::span<const int32_t> predicted;  // [N] the id that the model thinks most likely to follow
};

// How often each id was seen and how often it chose each expert.
class IdCounts {
 public:
  explicit IdCounts(int64_t experts) : experts_(experts) {}
  void add(int32_t id, std::span<const int32_t> chosen);

  // Vocabulary specialisation, OLMoE (arXiv 2409.02060) equation 8, as its authors' script works it
  // out:
  //   mean over the ids v that occur of  max_e N_ve / N_v,
  //     N_v occurrences of v, N_ve those that chose e.
  // The mean is not weighted by how often an id occurs. With K > 1 choices every chosen expert
  // counts, so that 1 still means: always the same expert.
  double specialisation() const;
  // The ids that e takes more occurrences of than any other expert (the lowest of equals) and that
  // occur at least kLeastOccurrences times: by falling N_ve / N_v, then falling N_v, then rising
  // id; at most kFavourites for each expert. Texts are left empty.
  std::vector<std::vector<TokenAffinity>> favourites() const;

  static constexpr int64_t kLeastOccurrences = 10;
  static constexpr size_t kFavourites = 15;

 private:
  int64_t experts_;
  std::vector<int32_t> row_of_;       // [ids up to the largest seen] -1: not seen
  std::vector<int64_t> occurrences_;  // [rows]
  std::vector<int32_t> counts_;       // [rows * E]
};

class LayerCounts {
 public:
  // `token_choice`: tokens choose their experts (and not experts their tokens), so that a margin
  // has a meaning. `by_neuron`: experts are neurons, whose pairs and ids are not counted: that
  // takes the square of hundreds of choices a token.
  LayerCounts(int64_t layer, int64_t experts, int64_t domains, bool token_choice,
              bool by_neuron = false);

  // `earlier`: what another checkpoint did with the same window, or null; the same in every call.
  void add(const RoutedRows& rows, const WindowIds& ids, int64_t domain, const RoutedRows* earlier);

  // Figures, by the field of LayerStats:
  //   load e            q_e = c_e / P
  //   mass e            sum of the combine weights sent to e over that of all experts
  //   max_vio           max_e c_e / (P / E) - 1
  //                     (MaxVio, arXiv 2408.15664)
  //   max_vio_batch     the mean over windows of the same of each window's own counts
  //   cv2               population variance of c over its squared mean: E sum_e c_e^2 / P^2 - 1
  //                     (arXiv 1701.06538)
  //   load_entropy      H / ln E with H = -sum_e q_e ln q_e
  //   effective_experts exp(H)
  //   dead              the number of e with c_e < P / (100 E)
  //   dropped           pairs that found no room / P
  //   unrouted          the share of tokens with no kept pair
  //   router_entropy    mean over n of -sum_e p_ne ln p_ne, over ln E; p_ne = s_ne / sum_e s_ne
  //                     (sigmoid scores do not sum to 1 by themselves)
  //   margin            mean over n of min of s_ne over C_n - max of s_ne over the rest; tokens
  //                     that chose none or all are passed over. Below 0 where a
  //                     selection bias or groups chose against the scores. Absent where experts
  //                     choose.
  //   top_score         mean over n of max_e s_ne
  //   domain (d, e)     tokens of d that chose e / tokens of d
  //                     (domain specialisation, OLMoE equation 7)
  //   coactivation      (i, j): tokens that chose both / c_i; 1 where i = j, 0 where c_i = 0
  //                     (OLMoE equation 6, over all pairs of C_n; its script
  //                     counts neighbours in the ranking only)
  //   saturation        sum_n |C_n and C'_n| / P with C' of the earlier checkpoint: with K choices
  //                     a token the mean of |..| / K  (OLMoE equation 5)
  LayerStats finish() const;

 private:
  void add_scores(const RoutedRows& rows, int64_t n, std::span<const int32_t> chosen);
  void add_pairs_and_ids(std::span<const int32_t> chosen, const WindowIds& ids, size_t n);

  int64_t layer_, experts_;
  bool token_choice_, by_neuron_;
  int64_t tokens_ = 0, windows_ = 0, kept_ = 0, unrouted_ = 0, margins_ = 0, scored_ = 0,
          shared_ = 0;
  bool compared_ = false;
  double weight_ = 0, window_max_vio_ = 0, entropy_ = 0, margin_ = 0, top_ = 0;
  std::vector<int64_t> counts_;                         // [E]
  std::vector<double> mass_;                            // [E]
  std::vector<int64_t> domain_tokens_, domain_counts_;  // [domains], [domains * E]
  std::vector<int64_t> pairs_;                          // [E * E]; empty by neuron
  IdCounts input_, target_, predicted_;
};

}  // namespace moe
