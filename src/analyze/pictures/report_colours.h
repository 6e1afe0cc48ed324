// Colours that a page or a picture needs beside those of chart.css: of experts and of layers, for
// light and dark.
#pragma once

#include <cstdint>
#include <string>

namespace moe {

constexpr int64_t kLayerColours = 8;

// The class of an expert's colour, x0, x1, ...; of the i-th of n things in order, q0..q7.
std::string expert_colour(int64_t expert);
std::string ordered_colour(int64_t i, int64_t n);

// The class of a number on a cell of a heat map, tbb to tww: black or white in light, then in dark,
// whichever is read better there. heat: -1 to 1.
std::string cell_text_class(double heat);

// Style that defines light.css and dark.css's variables, `experts` classes of expert_colour and
// those of ordered_colour, each as --c: "red green blue". Light and dark follow the reader's
// system, or html[data-theme] where that is set; print is light.
std::string theme_style(int64_t experts);

}  // namespace moe
