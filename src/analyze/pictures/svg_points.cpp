// Charts of named points. The y axis may be one of factors: perplexities of 20 and 1000 stand in
// one chart.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "analyze/pages/markup.h"
#include "analyze/pictures/svg_chart.h"
#include "analyze/pictures/svg_parts.h"

namespace moe {
namespace {

using svg::Axis;

constexpr double kLeft = 44, kTop = 24, kBottom = 36, kRight = 14;
constexpr size_t kLongest = 20;  // characters of a name

// Levels of an axis of factors within [low, high], above 0: of the coarsest of these sets that has
// four of them there.
std::vector<double> factor_ticks(double low, double high) {
  static const std::vector<std::vector<double>> kSets = {
      {1},
      {1, 3},
      {1, 2, 5},
      {1, 1.5, 2, 3, 5, 7},
      {1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9}};
  std::vector<double> ticks;
  for (const std::vector<double>& set : kSets) {
    ticks.clear();
    for (double power = std::floor(std::log10(low)); power <= std::log10(high); ++power)
      for (const double s : set)
        if (const double tick = s * std::pow(10.0, power); tick >= low && tick <= high)
          ticks.push_back(tick);
    if (ticks.size() >= 4) break;
  }
  return ticks;
}

// The y axis, of ln y where the chart is one of factors.
struct Height {
  Axis axis;
  bool log = false;
  double step = 0;  // of ticks evenly apart; 0: they are factor_ticks
  double operator()(double value) const { return axis(log ? std::log(value) : value); }
};

Height make_height(const PointChart& c, double low, double high) {
  Height h{.axis = {}, .log = c.log_y && low > 0};
  const double bottom = c.height - kBottom;
  if (!h.log) {
    const double room = 0.08 * (high - low);
    h.axis = svg::make_axis(low >= 0 ? std::max(0.0, low - room) : low - room, high + room, bottom,
                            kTop, 5);
    return h;
  }
  const double room = std::max(0.08 * std::log(high / low), 0.04);
  h.axis = {.low = std::log(low) - room,
            .high = std::log(high) + room,
            .from = bottom,
            .to = kTop,
            .ticks = {}};
  const double least = std::exp(h.axis.low), most = std::exp(h.axis.high);
  h.axis.ticks = factor_ticks(least, most);
  if (h.axis.ticks.size() >= 2) return h;
  // Within a few hundredths of each other: there a plain axis has numbers, and bends little.
  h.axis.ticks = svg::make_axis(least, most, bottom, kTop, 5).ticks;
  if (h.axis.ticks.size() >= 2) h.step = h.axis.ticks[1] - h.axis.ticks[0];
  return h;
}

void draw_levels(std::string& out, const Height& y, double left, double right) {
  if (!y.log) return svg::draw_y_axis(out, y.axis, left, right, Unit::number);
  for (const double tick : y.axis.ticks) {
    out += svg::line(left, y(tick), right, y(tick), "gr");
    const double power = std::pow(10.0, std::floor(std::log10(tick) + 1e-9)), first = tick / power;
    const double step = y.step > 0                                   ? y.step
                        : std::abs(first - std::round(first)) < 1e-6 ? power
                                                                     : power / 10;
    out += svg::text(left - 6, y(tick) + 4, "ax e", tick_number(tick, step));
  }
}

struct Spot {
  double x = 0, y = 0;
};

double apart(Spot a, Spot b) { return std::hypot(a.x - b.x, a.y - b.y); }

struct Label {
  double left = 0, top = 0, width = 0;  // top: where its letters stand
  bool touches(const Label& other) const {
    constexpr double kLabelHeight = 13;
    return left < other.left + other.width && other.left < left + width &&
           std::abs(top - other.top) < kLabelHeight;
  }
  Spot nearest_to(Spot p) const {
    constexpr double kAscent = 9, kDescent = 2;
    return {std::clamp(p.x, left, left + width), std::clamp(p.y, top - kAscent, top + kDescent)};
  }
  double from(Spot p) const { return apart(nearest_to(p), p); }
};

// From a point to its name.
struct Lead {
  Spot begin, end;
  Spot at(double share) const {
    return {begin.x + share * (end.x - begin.x), begin.y + share * (end.y - begin.y)};
  }
  template <class Close>
  bool any_place(Close&& close) const {
    constexpr int kPlaces = 24;
    for (int i = 0; i <= kPlaces; ++i)
      if (close(at(static_cast<double>(i) / kPlaces))) return true;
    return false;
  }
};

// Under and to the right of its point, where a rising line does not run; at the right edge above
// and to the left; names that stand apart above. Where no line runs there are other places too.
std::vector<Label> labels_of(const Point& p, Spot at, double right, bool joined) {
  const double width = svg::width_of(shortened(p.name, kLongest));
  if (p.above) return {{at.x - 4, at.y - 10, width}};
  const Label left = {at.x - 10 - width, at.y - 7, width};
  const bool has_right = at.x + 9 + width <= right;
  if (joined && !has_right) return {left};
  std::vector<Label> places;
  if (has_right) places.push_back({at.x + 9, at.y + 14, width});
  if (joined) return places;
  if (has_right) places.push_back({at.x + 9, at.y - 7, width});
  if (left.left > kLeft || !has_right) {
    places.push_back(left);
    places.push_back({left.left, at.y + 14, width});
  }
  return places;
}

// Further away, for names that a line leads to.
std::vector<Label> far_labels_of(const Point& p, Spot at, double right, double bottom) {
  const double width = svg::width_of(shortened(p.name, kLongest));
  std::vector<Label> places;
  for (const double away : {26.0, 42.0, 60.0})
    for (const double x : {at.x + 14, at.x - 14 - width, at.x - width / 2})
      for (const double y : {at.y - away + 4, at.y + away + 4})
        if (x > kLeft && x + width < right && y > kTop + 9 && y < bottom - 4)
          places.push_back({x, y, width});
  return places;
}

// Where names stand: none over another, and each nearest to its own point, or led to.
class NamePlaces {
 public:
  explicit NamePlaces(std::vector<Spot> points) : points_(std::move(points)) {}

  struct Place {
    Label label;
    std::optional<Lead> lead;
  };
  // The first of `near` that needs no lead; else the first of `far` that a lead gets to; else what
  // there is of `near`, but over another point only `whatever` happens.
  std::optional<Place> take(size_t point, const std::vector<Label>& near,
                            const std::vector<Label>& far, bool whatever) {
    std::optional<Label> beside, over;
    for (const Label& label : near) {
      if (!is_free(label)) continue;
      const double others = from_others(point, label);
      if (others > label.from(points_[point]) + kClearly) return keep({label, {}});
      std::optional<Label>& first = others > kDot ? beside : over;
      if (!first) first = label;
    }
    for (const Label& label : far) {
      const Lead lead = lead_to(point, label);
      if (is_free(label) && from_others(point, label) > kFarDot && is_free(point, lead))
        return keep({label, lead});
    }
    if (!beside && whatever) beside = over;
    if (!beside) return {};
    return keep({*beside, lead_to(point, *beside)});
  }

 private:
  static constexpr double kClearly = 3, kDot = 5, kFarDot = 8;

  double from_others(size_t point, const Label& label) const {
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < points_.size(); ++i)
      if (i != point) least = std::min(least, label.from(points_[i]));
    return least;
  }
  bool is_free(const Label& label) const {
    return std::none_of(placed_.begin(), placed_.end(), [&](const Place& other) {
      return label.touches(other.label) ||
             (other.lead && other.lead->any_place([&](Spot at) { return label.from(at) < 1; }));
    });
  }
  bool is_free(size_t point, const Lead& lead) const {
    return !lead.any_place([&](Spot at) {
      for (size_t i = 0; i < points_.size(); ++i)
        if (i != point && apart(points_[i], at) < kDot) return true;
      return std::any_of(placed_.begin(), placed_.end(),
                         [&](const Place& other) { return other.label.from(at) < 1; });
    });
  }
  Lead lead_to(size_t point, const Label& label) const {
    return {points_[point], label.nearest_to(points_[point])};
  }
  Place keep(Place place) {
    placed_.push_back(place);
    return place;
  }

  std::vector<Spot> points_;
  std::vector<Place> placed_;
};

// Those that matter first; a name that would lie over another is left to the pointer.
std::string draw_names(const std::vector<Point>& points, const Axis& x, const Height& y,
                       bool joined) {
  std::vector<Spot> spots;
  for (const Point& p : points) spots.push_back({x(p.x), y(p.y)});
  const auto matters = [&](size_t i) { return points[i].ringed || points[i].above || i == 0; };
  std::vector<size_t> order;
  for (const bool first : {true, false})
    for (size_t i = 0; i < points.size(); ++i)
      if (first == matters(i)) order.push_back(i);
  NamePlaces places(spots);
  std::string out;
  for (const size_t i : order) {
    const Point& p = points[i];
    std::vector<Label> far;
    if (!joined) far = far_labels_of(p, spots[i], x.to, y.axis.from);
    const auto place = places.take(i, labels_of(p, spots[i], x.to, joined), far, matters(i));
    if (!place) continue;
    if (const auto& lead = place->lead)
      out += svg::line(lead->begin.x, lead->begin.y, lead->end.x, lead->end.y, "ld");
    out += svg::text(place->label.left, place->label.top, "lb", shortened(p.name, kLongest));
  }
  return out;
}

void draw_point(std::string& out, const Point& p, double x, double y) {
  out += "<g>" + svg::title(p.says);
  if (p.ringed)
    out += fmt::format(R"(<circle class="rg {}" cx="{}" cy="{}" r="8"/>)", p.colour, coordinate(x),
                       coordinate(y));
  out += fmt::format(R"(<circle class="dt {}" cx="{}" cy="{}" r="4.5"/></g>)", p.colour,
                     coordinate(x), coordinate(y));
}

}  // namespace

Drawing draw_points(const PointChart& c) {
  Drawing drawing{.width = c.width, .height = c.height, .label = c.label, .body = {}};
  std::string& out = drawing.body;
  std::vector<Point> points = c.points;
  std::erase_if(points, [](const Point& p) { return !std::isfinite(p.x) || !std::isfinite(p.y); });
  if (points.empty()) {
    out = svg::text(c.width / 2, c.height / 2, "ax m", "no values");
    return drawing;
  }
  const auto [left, right] = std::minmax_element(
      points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  const auto [low, high] = std::minmax_element(
      points.begin(), points.end(), [](const Point& a, const Point& b) { return a.y < b.y; });
  const double room = 0.06 * (right->x - left->x);
  const Axis x = svg::make_axis(left->x - room, right->x + room, kLeft, c.width - kRight, 5);
  const Height y = make_height(c, low->y, high->y);
  out += svg::text(0, 10, "ax", c.y_title);
  draw_levels(out, y, kLeft, x.to);
  const double step = x.ticks.size() > 1 ? x.ticks[1] - x.ticks[0] : 1;
  for (const double tick : x.ticks) {
    out += svg::line(x(tick), kTop, x(tick), c.height - kBottom, "gr");
    out += svg::text(x(tick), c.height - kBottom + 15, "ax m",
                     tick_number(tick, step) + (c.x_unit == Unit::ratio ? "×" : ""));
  }
  out += svg::line(x.from, c.height - kBottom, x.to, c.height - kBottom, "bs");
  out += svg::text(x.to, c.height - 4, "ax e", c.x_title);
  std::string path;
  for (size_t i = 0; c.joined && i < points.size(); ++i) {
    const bool joined = i > 0 && points[i].colour == points[i - 1].colour;
    path += fmt::format("{}{} {}", joined ? 'L' : 'M', coordinate(x(points[i].x)),
                        coordinate(y(points[i].y)));
    if (i + 1 < points.size() && points[i + 1].colour == points[i].colour) continue;
    if (joined) out += fmt::format(R"(<path class="ln {}" d="{}"/>)", points[i].colour, path);
    path.clear();
  }
  out += draw_names(points, x, y, c.joined);
  for (const Point& p : points) draw_point(out, p, x(p.x), y(p.y));
  return drawing;
}

}  // namespace moe
