#include "analyze/pictures/report_colours.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analyze/pages/report_assets.h"
#include "core/error.h"

namespace moe {
namespace {

// Eight hues found by a search for the largest least distance in Oklab, as seen with normal sight
// and with each of three colour blindnesses (Machado 2009), at a contrast of 3 and more with the
// card.
constexpr std::array<const char*, 8> kLight = {"38 121 167", "189 78 55", "13 150 120", "168 132 4",
                                               "142 96 224", "159 9 105", "48 59 180",  "113 65 0"};
constexpr std::array<const char*, 8> kDark = {"105 199 218", "226 92 40",   "63 224 164",
                                              "252 212 52",  "176 140 253", "204 98 178",
                                              "84 134 246",  "229 156 123"};
// From green over blue to purple: an order that survives print and colour blindness by its growing
// darkness (light) or by hue and lightness (dark).
constexpr std::array<const char*, kLayerColours> kLightOrder = {
    "32 150 136", "30 138 158", "34 118 168", "44 98 176",
    "58 76 178",  "80 58 170",  "98 42 150",  "108 26 122"};
constexpr std::array<const char*, kLayerColours> kDarkOrder = {
    "123 224 192", "95 208 208",  "95 188 224",  "111 166 242",
    "141 147 247", "171 134 242", "199 127 228", "221 124 208"};

// More than eight experts: hues a golden angle apart, so that neighbours differ, on three
// lightnesses. hsl to "r g b".
std::string spun_colour(int64_t i, bool dark) {
  const double hue = std::fmod(210 + 137.50776405 * static_cast<double>(i), 360);
  const double light = (dark ? 0.60 : 0.34) + 0.06 * static_cast<double>(i % 3), saturation = 0.6;
  const double chroma = (1 - std::abs(2 * light - 1)) * saturation;
  const auto channel = [&](double n) {
    const double k = std::fmod(n + hue / 30, 12);
    return static_cast<int>(
        std::lround(255 * (light - chroma / 2 * std::max(-1.0, std::min({k - 3, 9 - k, 1.0})))));
  };
  return fmt::format("{} {} {}", channel(0), channel(8), channel(4));
}

using Rgb = std::array<double, 3>;  // 0 to 1

// A colour of light.css or dark.css.
Rgb theme_colour(bool dark, std::string_view name) {
  const std::string_view css = report_asset(dark ? "dark.css" : "light.css");
  const size_t at = css.find(name);
  if (at == std::string_view::npos) fail("the report's style has no colour {}", name);
  std::string hex(css.substr(at + name.size() + 1, css.find(';', at) - at - name.size() - 1));
  if (hex.size() == 3) hex = {hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]};
  const unsigned long bits = std::stoul(hex, nullptr, 16);
  return {static_cast<double>(bits >> 16 & 255) / 255, static_cast<double>(bits >> 8 & 255) / 255,
          static_cast<double>(bits & 255) / 255};
}

// Black is read better than white on a ground whose relative luminance (WCAG 2.1) is above that at
// which both contrasts are equal.
bool wants_black(const Rgb& ground) {
  static constexpr Rgb kWeights = {0.2126, 0.7152, 0.0722};
  double luminance = 0;
  for (size_t i = 0; i < 3; ++i)
    luminance += kWeights[i] * (ground[i] <= 0.03928 ? ground[i] / 12.92
                                                     : std::pow((ground[i] + 0.055) / 1.055, 2.4));
  return (luminance + 0.05) * (luminance + 0.05) > 1.05 * 0.05;
}

// Variables of one mode, as declarations.
std::string declarations(int64_t experts, bool dark) {
  std::string out(report_asset(dark ? "dark.css" : "light.css"));
  out += dark ? "--ink-rgb:233 232 227;--soft-rgb:150 156 165;"
              : "--ink-rgb:27 29 33;--soft-rgb:120 125 133;";
  for (int64_t e = 0; e < experts; ++e) {
    const std::string colour =
        experts <= 8 ? (dark ? kDark : kLight)[static_cast<size_t>(e)] : spun_colour(e, dark);
    out += fmt::format("--x{}:{};", e, colour);
  }
  for (size_t i = 0; i < kLayerColours; ++i)
    out += fmt::format("--q{}:{};", i, (dark ? kDarkOrder : kLightOrder)[i]);
  std::erase(out, '\n');
  return out;
}

}  // namespace

std::string expert_colour(int64_t expert) { return fmt::format("x{}", expert); }

std::string ordered_colour(int64_t i, int64_t n) {
  return fmt::format("q{}", n < 2 ? 2 : i * (kLayerColours - 1) / (n - 1));
}

std::string cell_text_class(double heat) {
  std::string name = "t";
  for (const bool dark : {false, true}) {
    const Rgb card = theme_colour(dark, "--card:"),
              hue = theme_colour(dark, heat < 0 ? "--under:" : "--over:");
    Rgb ground;
    for (size_t i = 0; i < 3; ++i) ground[i] = card[i] + std::abs(heat) * (hue[i] - card[i]);
    name += wants_black(ground) ? 'b' : 'w';
  }
  return name;
}

std::string theme_style(int64_t experts) {
  const std::string light = declarations(experts, false), dark = declarations(experts, true);
  std::string out = fmt::format(
      ":root{{color-scheme:light dark;{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n",
      light, dark);
  out += fmt::format(
      ":root[data-theme=light]{{color-scheme:light;{}}}\n:root[data-theme=dark]{{color-scheme:dark;"
      "{}}}\n",
      light, dark);
  out += fmt::format("@media print{{:root:root:root{{color-scheme:light;{}}}}}\n", light);
  for (int64_t e = 0; e < experts; ++e) out += fmt::format(".x{0}{{--c:var(--x{0})}}", e);
  for (int64_t i = 0; i < kLayerColours; ++i) out += fmt::format(".q{0}{{--c:var(--q{0})}}", i);
  return out + "\n";
}

}  // namespace moe
