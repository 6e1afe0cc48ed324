#include "analyze/pictures/sample_picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "analyze/data/sample_words.h"
#include "analyze/pages/markup.h"
#include "analyze/pages/sample_texts.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/svg_parts.h"
#include "text/utf8.h"

namespace moe {
namespace {

constexpr size_t kMostSamples = 6;
constexpr int kLines = 6;
constexpr double kCell = 7.2, kLine = 22;
constexpr int64_t kMostKeys = 16;

// Columns of a fixed-width font that a text takes: two for the wide characters of East Asia and for
// emoji, which are those of three bytes from U+1100 on that are no punctuation or symbol below
// U+2E80, and all of four bytes.
int cells_of(std::string_view text) {
  int cells = 0;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool wide =
        step.kind == Utf8Step::Kind::character &&
        (step.length == 4 || (step.length == 3 && first >= 0xE3) ||
         (step.length == 3 && first == 0xE1 && static_cast<unsigned char>(text[1]) < 0x86));
    cells += wide ? 2 : 1;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return cells;
}

// Lays tokens out in lines of fixed-width cells. The width of each text is set, so that any font
// keeps to the cells.
class Page {
 public:
  explicit Page(int columns) : columns_(columns) {}

  bool full() const { return line_ >= kLines; }
  void token(const std::string& piece, const std::vector<Choice>& sent) {
    size_t from = 0;
    for (size_t at; (at = piece.find('\n', from)) != std::string::npos && !full(); from = at + 1) {
      run(piece.substr(from, at - from) + "↵", sent);
      next_line();
    }
    if (from < piece.size() && !full()) run(piece.substr(from), sent);
  }
  std::string body() const { return out_; }

 private:
  void next_line() { ++line_, column_ = 0; }
  void run(std::string text, const std::vector<Choice>& sent) {
    if (cells_of(text) > columns_) text = shortened(text, static_cast<size_t>(columns_ / 2));
    const int cells = cells_of(text);
    if (column_ + cells > columns_) next_line();
    if (full()) return;
    const double x = kCell * column_, y = kLine * line_, width = kCell * cells;
    if (!sent.empty()) {
      const std::string colour = "br " + expert_colour(sent[0].expert);
      out_ += svg::rect(x, y, width, 17, colour) +
              fmt::format(R"( fill-opacity="{}"/>)", decimal(0.08 + 0.3 * first_part(sent), 2));
      out_ += svg::rect(x, y + 17, width, 2, colour) + "/>";
    }
    if (text.find_first_not_of(" \t\r") != std::string::npos)
      out_ += fmt::format(
          R"(<text x="{}" y="{}" class="mo" textLength="{}" lengthAdjust="spacingAndGlyphs" xml:space="preserve">{}</text>)",
          coordinate(x), coordinate(y + 13), coordinate(width), escape(text));
    column_ += cells;
  }

  int columns_, line_ = 0, column_ = 0;
  std::string out_;
};

Drawing keys(int64_t experts) {
  Drawing d{.width = 0, .height = 18, .label = "the colours of the experts", .body = {}};
  for (int64_t e = 0; e < experts; ++e) {
    d.body += svg::rect(d.width, 2, 11, 11, "br " + expert_colour(e)) + R"( rx="3"/>)" +
              svg::text(d.width + 15, 12, "lb", std::to_string(e));
    d.width += 24 + svg::width_of(std::to_string(e));
  }
  return d;
}

}  // namespace

std::optional<Picture> sample_picture(const RoutingReport& r) {
  if (r.moe_layers.empty()) return {};
  const size_t layer = telling_layer(r);
  Picture picture{.title = "Sample texts",
                  .line = {},
                  .panels = {},
                  .scale = {},
                  .columns = 2,
                  .experts = r.experts};
  picture.line = fmt::format("Layer {}. {}", r.moe_layers[layer].layer, sample_colours(r));
  if (r.experts <= kMostKeys) picture.scale = keys(r.experts);
  for (const SampleText& tokens : r.samples) {
    if (picture.panels.size() == kMostSamples || layer >= tokens.experts.size()) break;
    const SampleText s = r.ids_are_bytes ? by_words(tokens) : tokens;
    Page page(static_cast<int>(kPanelWidth / kCell));
    for (size_t t = 0; t < s.pieces.size() && !page.full(); ++t)
      page.token(s.pieces[t], choices_of(s, layer, t));
    picture.panels.emplace_back(
        shortened(s.domain, 40),
        Drawing{.height = kLines * kLine, .label = "a piece of text", .body = page.body()});
  }
  if (picture.panels.empty()) return {};
  return picture;
}

}  // namespace moe
