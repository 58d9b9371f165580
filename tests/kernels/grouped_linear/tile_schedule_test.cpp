#include "kernels/grouped_linear/tile_schedule.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace gl = moeplan::kernels::grouped_linear;

namespace {

/// Counts how often each (row tile, token) is stored by `blocks` blocks.
template <int cluster>
std::vector<std::vector<int>> coverage(const std::vector<int>& counts, int row_tiles, int blocks) {
    std::vector<int> offsets{0};
    for (int n : counts) offsets.push_back(offsets.back() + n);
    std::vector<std::vector<int>> seen(row_tiles, std::vector<int>(offsets.back(), 0));
    for (int group = 0; group < blocks / cluster; ++group)
        for (int rank = 0; rank < cluster; ++rank) {
            gl::TileWalk<cluster> walk(offsets.data(), static_cast<int>(counts.size()), row_tiles);
            gl::Tile tile;
            for (int item = group; walk.find(item, rank, tile); item += blocks / cluster) {
                EXPECT_GE(tile.tokens, 1);
                EXPECT_LE(tile.tokens, gl::tile_tokens);
                EXPECT_GE(tile.token0, offsets[tile.expert]);
                EXPECT_LE(tile.token0 + tile.tokens, offsets[tile.expert + 1]);
                for (int t = 0; tile.store && t < tile.tokens; ++t) ++seen[tile.row_tile][tile.token0 + t];
            }
        }
    return seen;
}

void expect_once(const std::vector<std::vector<int>>& seen) {
    for (const auto& row : seen)
        for (int n : row) ASSERT_EQ(n, 1);
}

} // namespace

TEST(TileSchedule, every_output_is_computed_once_whatever_the_distribution) {
    const std::vector<std::vector<int>> loads{
        {0, 1, 7, 127, 128, 129, 0, 300, 640, 0}, {5000}, {0, 0, 0}, {1281, 2049, 4097}, std::vector<int>(1024, 3)};
    for (const auto& load : loads)
        for (const int row_tiles : {1, 2, 9, 16})
            for (const int blocks : {2, 10, 132}) {
                expect_once(coverage<1>(load, row_tiles, blocks));
                expect_once(coverage<2>(load, row_tiles, blocks));
            }
}

TEST(TileSchedule, both_blocks_of_a_cluster_take_the_same_number_of_tiles_in_step) {
    const std::vector<int> offsets{0, 130, 130, 513};
    gl::TileWalk<2> first(offsets.data(), 3, 5), second(offsets.data(), 3, 5);
    gl::Tile a, b;
    for (int item = 0;; ++item) {
        const bool more = first.find(item, 0, a);
        ASSERT_EQ(second.find(item, 1, b), more);
        if (!more) break;
        EXPECT_EQ(a.expert, b.expert);
        EXPECT_EQ(a.shares_weights, b.shares_weights);
        if (a.shares_weights) {
            EXPECT_EQ(a.row_tile, b.row_tile);
            EXPECT_NE(a.token0, b.token0);
        }
    }
}
