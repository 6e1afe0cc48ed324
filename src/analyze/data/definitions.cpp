#include "analyze/data/definitions.h"

#include <array>

#include "core/error.h"

namespace moe {
namespace {

// K: experts a token chooses, E: experts of the layer. The formulas stand with the code that
// computes them (analyze/data/layer_counts.h).
constexpr auto kTable = std::to_array<Definition>({
    {"load", "Load", "an expert's share of all choices; 1/E when even", ""},
    {"mass", "Weight mass",
     "an expert's share of all combine weights that were sent; well under its load: it is chosen "
     "often but listened to little",
     ""},
    {"max_vio", "MaxVio",
     "how far the busiest expert is above the mean load, over all texts: max / mean - 1; 0 is even",
     "arXiv 2408.15664"},
    {"max_vio_batch", "MaxVio of a window",
     "the same within each window of text, averaged: higher than MaxVio where each text has its "
     "own experts",
     "arXiv 2408.15664"},
    {"cv2", "CV squared", "variance of the experts' loads over the square of their mean; 0 is even",
     "arXiv 1701.06538, section 4"},
    {"load_entropy", "Entropy of the load",
     "entropy of the load over ln E: 1 when every expert gets as much, 0 when one gets all", ""},
    {"effective_experts", "Effective experts",
     "exp of the entropy of the load: so many experts with even loads would have the same entropy",
     ""},
    {"dead", "Dead experts", "experts that get less than a hundredth of the mean load", ""},
    {"dropped", "Dropped", "share of the choices that found no room in their expert's buffer", ""},
    {"unrouted", "Without expert", "share of tokens that no routed expert worked on", ""},
    {"router_entropy", "Entropy of the router",
     "how undecided the router is about one token: entropy of its scores, made to sum to 1, over "
     "ln E; mean over tokens; 1 when all are equal",
     ""},
    {"margin", "Margin",
     "how much the weakest chosen expert's score is above the best score left out, mean over "
     "tokens; near 0: a close call",
     ""},
    {"top_score", "Top score", "the largest score of a token, mean over tokens", ""},
    {"domain", "Domain specialisation",
     "share of a domain's tokens that choose the expert; K/E when even",
     "OLMoE, arXiv 2409.02060, equation 7"},
    {"coactivation", "Co-activation",
     "of the tokens that choose expert i, the share that choose j too; (K-1)/(E-1) at random",
     "OLMoE, arXiv 2409.02060, equation 6"},
    {"vocabulary_input", "Vocabulary specialisation, input",
     "how often a token id goes to its favourite expert: mean over ids of the favourite's count "
     "over the id's occurrences",
     "OLMoE, arXiv 2409.02060, equation 8"},
    {"vocabulary_target", "Vocabulary specialisation, next",
     "the same by the id that follows in the text", "OLMoE, arXiv 2409.02060, equation 8"},
    {"vocabulary_predicted", "Vocabulary specialisation, predicted",
     "the same by the id that the model thinks most likely to follow",
     "OLMoE, arXiv 2409.02060, equation 8"},
    {"favourites", "Favourite tokens",
     "ids that go to the expert more than to any other, by the share that it takes of their "
     "occurrences; of those that occur at least 10 times",
     "OLMoE, arXiv 2409.02060, equation 8"},
    {"saturation", "Router saturation",
     "share of the choices that the earlier checkpoint made too, on the same input; K/E at random",
     "OLMoE, arXiv 2409.02060, equation 5"},
    {"nats_per_token", "Loss", "mean surprise at the next token, in nats: the mean of -ln p", ""},
    {"sample", "Sample",
     "a piece of text: each token with the experts it chose, their weights and how surprising it "
     "was",
     ""},
    {"ce", "Training loss",
     "cross-entropy in nats a token, without auxiliary losses; each point is the mean over its "
     "steps",
     ""},
    {"eval_ce", "Held-out loss", "cross-entropy in nats a token on text that is not trained on",
     ""},
    {"dpo", "Preference pairs",
     "-ln sigmoid of the margin, mean over pairs: the loss that is trained on; ln 2 at the start",
     "Rafailov et al., arXiv 2305.18290, equation 7"},
    {"pair_margin", "Margin of pairs",
     "beta times how much more likely the chosen reply has become than the rejected one, in nats, "
     "against the reference; mean over pairs",
     ""},
    {"pair_accuracy", "Accuracy of pairs", "share of the pairs with a margin above 0", ""},
    {"losses", "Auxiliary losses",
     "what the router is trained on beside the cross-entropy, before the coefficients", ""},
    {"step_max_vio", "MaxVio in training",
     "MaxVio of each step's own tokens, mean over the steps of a point", "arXiv 2408.15664"},
    {"step_load", "Load in training",
     "each expert's share of the choices, mean over the steps of a point; 1/E when even", ""},
    {"step_dropped", "Dropped in training",
     "share of the choices that found no room, mean over the steps of a point", ""},
    {"grad_norm", "Gradient norm", "length of the gradient before it is clipped", ""},
    {"lr", "Learning rate", "the step's learning rate, mean over the steps of a point", ""},
    {"tokens_per_second", "Speed",
     "tokens trained on over the seconds spent in steps, without evaluations, saving and samples: "
     "of the steps of a point, or of the whole run where it stands alone",
     ""},
    {"alarms", "Alarms", "what the run noticed about itself while it ran", ""},
    {"perplexity", "Perplexity",
     "exp of the mean loss in nats a token: as unsure as among so many equally likely tokens", ""},
    {"bits_per_byte", "Bits a byte",
     "the loss of the whole text in bits over its bytes: comparable between vocabularies", ""},
    {"right", "Right at the first guess",
     "share of the tokens that the model found likeliest before it saw them", ""},
    {"kl", "KL divergence",
     "how much is lost by taking the later model's probabilities q for the earlier one's p: sum of "
     "p ln(p/q) over the vocabulary, nats, mean over tokens; 0 when equal",
     "Kullback and Leibler, 1951"},
    {"same_top", "Same likeliest token",
     "share of the places where both models find the same token likeliest", ""},
    {"rms_change", "Change of probability",
     "of the token that came: root of the mean square of the difference", ""},
    {"decode_rate", "Decode",
     "tokens a second, written one after the other: the median of repeats; models are measured in "
     "turns and the factor is that of neighbours",
     ""},
    {"prompt_rate", "Prompt", "tokens a second of reading a prompt, measured in the same way", ""},
    {"bytes_per_token", "Weights read a token",
     "bytes of weights that writing one token has to read: what limits decoding where memory does",
     ""},
    {"flops_per_token", "FLOPs a token",
     "arithmetic of one token's forward: two for each number of a matrix that is used, and "
     "attention over a window",
     ""},
    {"weight_bytes", "Weights", "bytes of all weights in the types that they have", ""},
    {"parameters", "Parameters", "numbers that the model holds", ""},
    {"active_parameters", "Active parameters",
     "of them, those that a token uses; embeddings count as active", ""},
    {"frontier", "Quality against speed",
     "the same conversion with more and fewer experts for a token: perplexity against decode "
     "speed. Down and to the right is better; both axes belong together",
     ""},
    {"prompt_frontier", "Quality against prompt speed",
     "the same against the speed of reading a prompt", ""},
    {"reconstruction_error", "Reconstruction error",
     "how far a layer's new FFN is from the one it was made of, at the inputs that the converted "
     "model gives it: length of the difference over the length of the "
     "output, on the calibration text",
     ""},
    {"router_agreement", "Router against oracle",
     "share of a token's experts that are among those with the largest activations in sum, which "
     "only who computed all experts could know; A of the routed experts at random",
     "MoEfication, arXiv 2110.01786"},
    {"layer_active", "Active experts", "routed experts that a token takes in each layer", ""},
    {"drift", "Drift of the state",
     "how far the state after each layer has moved: length of the difference over the length "
     "before, mean over tokens",
     ""},
    {"same_choices", "Choices that stay",
     "of the experts that tokens chose before, the share that they choose after too", ""},
    {"league_loss", "Held-out loss by arm",
     "nats a byte after the same tokens with the same active work, or after an arm's own time, "
     "each arm at its best learning rate; a bar spans its seeds, the dotted line is the dense "
     "twin",
     ""},
    {"league_cost", "Loss against the time of a run",
     "what the loss costs in time, in runs of the dense twin: down and to the left is better", ""},
    {"league_curve", "Held-out loss on the way",
     "of the dense twin and the best arms of as many steps; every arm has its whole schedule, so "
     "that only ends are to be compared",
     ""},
});

}  // namespace

std::span<const Definition> definitions() { return kTable; }

const Definition& definition(std::string_view key) {
  for (const Definition& d : kTable)
    if (d.key == key) return d;
  fail("there is no figure called \"{}\" among the definitions of a report", key);
}

}  // namespace moe
