// The charts of a league (analyze/data/league.h). A figure without panels has nothing to show.
#pragma once

#include <string>

#include "analyze/data/league.h"
#include "analyze/pictures/report_figures.h"

namespace moe {

// A row for each arm: the mean over the seeds as a dot, their range as a bar, the twin's loss as a
// line through all.
Figure league_loss_figure(const League&, const FigureOptions&);
// Loss against what a step costs.
Figure league_cost_figure(const League&, const FigureOptions&);
// Held-out loss over the steps, of the twin and the best arms.
Figure league_curve_figure(const League&, const FigureOptions&);

// The first as a picture of its own.
std::string league_picture(const League&);

}  // namespace moe
