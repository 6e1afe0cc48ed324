#include "analyze/pages/sample_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analyze/data/definitions.h"
#include "analyze/data/sample_words.h"
#include "analyze/pages/markup.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/report_figures.h"
#include "core/words.h"

namespace moe {
namespace {

// (layer, token, slot) of all samples together; keeps the page small
constexpr int64_t kMostChoices = 400'000;
constexpr int64_t kMostFavourites = 16'000;
constexpr int kWeightSteps = 4;  // classes w0..w4

struct Column {
  const char* key;
  const char* head;
  std::string (*cell)(const LayerStats&);
  std::string zero;  // said in place of a column that is all zero; empty: the column stays
};

const Column kColumns[] = {
    {"max_vio", "MaxVio", [](const LayerStats& l) { return decimal(l.max_vio, 2); }, ""},
    {"max_vio_batch", "of a window",
     [](const LayerStats& l) { return decimal(l.max_vio_batch, 2); }, ""},
    {"cv2", "CV²", [](const LayerStats& l) { return decimal(l.cv2, 3); }, ""},
    {"load_entropy", "entropy", [](const LayerStats& l) { return decimal(l.load_entropy, 3); }, ""},
    {"effective_experts", "effective",
     [](const LayerStats& l) { return decimal(l.effective_experts, 1); }, ""},
    {"dead", "dead", [](const LayerStats& l) { return std::to_string(l.dead); },
     "No expert is dead."},
    {"dropped", "dropped", [](const LayerStats& l) { return percent(l.dropped); },
     "No choice was dropped."},
    {"unrouted", "without", [](const LayerStats& l) { return percent(l.unrouted); },
     "No token is without expert."},
};

// The class of a token: its first expert's colour, deeper the larger that expert's part of all
// weights is.
std::string token_class(const std::vector<Choice>& sent) {
  return sent.empty() ? "t none"
                      : fmt::format("t {} w{}", expert_colour(sent[0].expert),
                                    std::lround(first_part(sent) * kWeightSteps));
}

// All layers' choices of one sample for the script: layers apart by '|', tokens by ';', choices by
// ',', "expert:weight in thousandths".
std::string packed_choices(const SampleText& s) {
  std::string out;
  for (size_t l = 0; l < s.experts.size(); ++l) {
    if (l > 0) out += '|';
    for (size_t t = 0; t < s.pieces.size(); ++t) {
      if (t > 0) out += ';';
      const std::vector<Choice> sent = choices_of(s, l, t);
      for (size_t k = 0; k < sent.size(); ++k)
        out += fmt::format("{}{}:{}", k > 0 ? "," : "", sent[k].expert,
                           std::lround(double{sent[k].weight} * 1000));
    }
  }
  return out;
}

// A piece as it stands in running text: its line ends are shown and still end the line.
std::string running(const std::string& piece) {
  if (piece.empty()) return "<i>·</i>";  // a part of a character that stands with a later token
  std::string out;
  size_t from = 0;
  for (size_t at; (at = piece.find('\n', from)) != std::string::npos; from = at + 1)
    out += escape(std::string_view(piece).substr(from, at - from)) + "<i>↵</i>\n";
  return out + escape(std::string_view(piece).substr(from));
}

// `tokens` of the `whole` sample are shown, as they are or, where they are bytes, by words.
std::string sample_html(const SampleText& whole, size_t number, size_t tokens, size_t layer,
                        bool bytes) {
  const SampleText part = first_tokens(whole, tokens), s = bytes ? by_words(part) : part;
  double nats = 0;
  std::string surprises;
  for (size_t t = 0; t < s.pieces.size(); ++t) {
    const double nll = t < s.nll.size() && std::isfinite(s.nll[t]) ? s.nll[t] : 0;
    nats += nll;
    if (t > 0) surprises += ' ';
    surprises += decimal(nll, 2);
  }
  // of the first token nothing is known
  if (!part.nll.empty() && std::isfinite(part.nll[0])) nats -= part.nll[0];
  const std::string_view unit = bytes ? "byte" : "token";
  std::string says = counted(static_cast<int64_t>(tokens), unit);
  if (tokens < whole.pieces.size())
    says = fmt::format("the first {} of {} {}s", tokens, whole.pieces.size(), unit);
  if (tokens > 1)
    says +=
        fmt::format(", {} nats per {}", decimal(nats / static_cast<double>(tokens - 1), 2), unit);
  std::string out = fmt::format(
      R"(<div class="sample"><h3>{}</h3><p class="meta">{}</p><div class="tokens" tabindex="0" role="group" )"
      R"(aria-label="tokens of the sample of {}; arrow keys move between them" data-nats="{}" data-experts="{}">)",
      escape(s.domain.empty() ? fmt::format("sample {}", number) : s.domain), says,
      escape(s.domain), surprises, packed_choices(s));
  for (size_t t = 0; t < s.pieces.size(); ++t)
    out += fmt::format(R"(<span class="{}">{}</span>)", token_class(choices_of(s, layer, t)),
                       running(s.pieces[t]));
  return out + "</div></div>";
}

}  // namespace

std::vector<Choice> choices_of(const SampleText& s, size_t layer, size_t token) {
  std::vector<Choice> sent;
  if (layer >= s.experts.size() || s.pieces.empty()) return sent;
  const std::vector<int32_t>& experts = s.experts[layer];
  const size_t slots = experts.size() / s.pieces.size();
  for (size_t k = token * slots; k < (token + 1) * slots; ++k) {
    const float weight =
        layer < s.weights.size() && k < s.weights[layer].size() ? s.weights[layer][k] : 0;
    if (experts[k] >= 0) sent.push_back({experts[k], std::isfinite(weight) ? weight : 0});
  }
  return sent;
}

double first_part(const std::vector<Choice>& sent) {
  double sum = 0;
  for (const Choice& c : sent) sum += std::abs(c.weight);
  return sum > 0 ? std::abs(sent[0].weight) / sum : 1;
}

size_t telling_layer(const RoutingReport& r) {
  size_t best = 0;
  double ratio = 0;
  for (size_t l = 0; l < r.moe_layers.size() && r.domains.size() > 1; ++l)
    if (const double here = strongest_domain(r, r.moe_layers[l]).ratio; here > ratio)
      ratio = here, best = l;
  return best;
}

std::string sample_colours(const RoutingReport& r) {
  if (r.ids_are_bytes)
    return "The tokens of this model are bytes, so a word has the colour of the expert with the "
           "most weight over its bytes, deeper where that is more of all their weight.";
  return "A token has the colour of its first expert, deeper where that expert has more of its "
         "weights.";
}

std::string balance_table(const RoutingReport& r) {
  if (r.moe_layers.empty()) return "";
  std::string head, body, words, zeros;
  std::vector<const Column*> shown;
  for (const Column& c : kColumns) {
    const auto is_zero = [&](const LayerStats& l) {
      return c.cell(l).find_first_not_of("0%") == std::string::npos;
    };
    if (!c.zero.empty() && std::all_of(r.moe_layers.begin(), r.moe_layers.end(), is_zero)) {
      zeros += (zeros.empty() ? "" : " ") + c.zero;
      continue;
    }
    shown.push_back(&c);
    const Definition& d = definition(c.key);
    head += fmt::format(R"(<th scope="col" title="{}: {}">{}</th>)", escape(d.title),
                        escape(d.line), c.head);
    words += fmt::format("<dt>{}</dt><dd>{}</dd>", c.head, escape(d.line));
  }
  for (const LayerStats& l : r.moe_layers) {
    body += fmt::format(R"(<tr><th scope="row">{}</th>)", l.layer);
    for (const Column* c : shown) body += fmt::format("<td>{}</td>", c->cell(l));
    body += "</tr>";
  }
  const std::string table = fmt::format(
      R"(<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">layer</th>{}</tr></thead><tbody>{}</tbody></table></div>)",
      head, body);
  return table + (zeros.empty() ? "" : fmt::format(R"(<p class="note">{}</p>)", zeros)) +
         fmt::format("<details><summary>What the columns are</summary><dl>{}</dl></details>",
                     words);
}

std::string favourites_html(const RoutingReport& r) {
  int64_t experts = 0;
  for (const LayerStats& l : r.moe_layers) experts += static_cast<int64_t>(l.favourites.size());
  if (experts == 0) return "";
  const auto most = static_cast<size_t>(std::clamp<int64_t>(kMostFavourites / experts, 2, 12));
  std::string out = R"(<div class="pick">)";
  for (const LayerStats& l : r.moe_layers) {
    out += fmt::format(R"(<section data-name="layer {0}"><h3>layer {0}</h3><dl class="fav">)",
                       l.layer);
    for (size_t e = 0; e < l.favourites.size(); ++e) {
      out += fmt::format(R"(<dt><i class="sw {}"></i>{}</dt><dd>)",
                         expert_colour(static_cast<int64_t>(e)), e);
      const std::vector<TokenAffinity>& tokens = l.favourites[e];
      for (size_t i = 0; i < std::min(most, tokens.size()); ++i)
        out += fmt::format(
            R"(<span class="chip" title="id {}: {} of {} occurrences"><bdi>{}</bdi><b>{}</b></span> )",
            tokens[i].id, percent(tokens[i].share), tokens[i].occurrences,
            escape(shortened(tokens[i].text, 24), Spaces::shown), percent(tokens[i].share));
      out += tokens.empty() ? "<span class=\"meta\">none often enough</span></dd>" : "</dd>";
    }
    out += "</dl></section>";
  }
  return out + "</div>";
}

std::string samples_html(const RoutingReport& r) {
  size_t samples = 0, layers = 0;
  for (const SampleText& s : r.samples) {
    if (s.pieces.empty()) continue;
    ++samples;
    layers = std::max(layers, s.experts.size());
  }
  if (samples == 0 || layers == 0) return "";
  const size_t start = telling_layer(r);
  std::string out = R"(<div class="samples"><div class="legend" aria-label="experts">)";
  for (int64_t e = 0; e < r.experts; ++e)
    out += fmt::format(R"(<span class="key {}" data-e="{}"><i class="sw"></i>{}</span>)",
                       expert_colour(e), e, e);
  out += fmt::format(
      R"(</div><p class="meta layer-note">Layer <span>{}</span>. {} Point at an expert above to find its {}s, at a {} for all its experts.</p>)",
      r.moe_layers.empty() ? 0 : r.moe_layers[start].layer, sample_colours(r),
      r.ids_are_bytes ? "word" : "token", r.ids_are_bytes ? "word" : "token");
  std::string names;
  for (const LayerStats& l : r.moe_layers)
    names += fmt::format("{}{}", names.empty() ? "" : " ", l.layer);
  out += fmt::format(R"(<div class="texts" data-layers="{}" data-start="{}">)", names, start);
  // Choices that a token really has: where experts choose, few of many slots are used.
  const auto slots = static_cast<size_t>(std::max<int64_t>(
      1, std::min(r.slots > 0 ? r.slots : r.top_k, 2 * std::max<int64_t>(1, r.top_k))));
  const size_t room =
      std::max<size_t>(16, static_cast<size_t>(kMostChoices) / (samples * layers * slots));
  for (size_t i = 0; i < r.samples.size(); ++i)
    if (!r.samples[i].pieces.empty())
      out += sample_html(r.samples[i], i, std::min(room, r.samples[i].pieces.size()), start,
                         r.ids_are_bytes);
  return out + "</div></div>";
}

}  // namespace moe
