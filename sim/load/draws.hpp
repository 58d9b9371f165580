#pragma once
/// Many normals and gammas of one stream at a time: the very numbers that `Random` gives one after the other, several
/// times as fast. The draws of expert loads are most of what pricing one plan takes.

#include <span>

#include "sim/load/random.hpp"

namespace moeplan {

/// out[i] = random.normal(), in order.
void draw_normals(Random& random, std::span<double> out);

/// out[i] = random.gamma(shapes[i]), in order; 0, and nothing drawn, for a shape of 0.
void draw_gammas(Random& random, std::span<const double> shapes, std::span<double> out);

}  // namespace moeplan
