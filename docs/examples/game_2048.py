"""The game 2048 on a small board as a Markov decision process, made by `ooc_mdp.from_rows`.

    python game_2048.py 3 512 game.store            # then: ooc-mdp solve game.store --total --output game.result

A move slides the tiles of a board of n x n cells (n = 2 or 3) to one side and merges equal neighbours, nearest the wall
first, each tile once; it must change the board. Then a 2 (probability 0.9) or a 4 (0.1) appears on an empty cell. The
game is won by a given tile and lost without a move: the total reward is the probability of winning.

Boards that are equal up to a reflection or rotation are one state. The sum of the tiles grows with each move, so states
in the order of their sums are in topological order. Rules and published values: J. Lees-Miller, *The Mathematics of
2048: Optimal Play with Markov Decision Processes*, https://jdlm.info/articles/2018/03/18/markov-decision-process-2048.html.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

import ooc_mdp

IntArray = npt.NDArray[np.int64]

TWO, FOUR = 0.9, 0.1
BITS = 4  # of a cell, which holds the logarithm of its tile, 0 where it is empty


class Game:
    """States: the boards in the order of (sum of tiles, cells), then the start, then the victory.

    Parameters
    ----------
    size : cells along a side.
    goal : logarithm of the tile that wins.
    """

    def __init__(self, size: int, goal: int) -> None:
        self.size, self.goal = size, goal
        self.cells, self.row_bits = size * size, BITS * size
        self.sum_shift = BITS * self.cells
        self.board_mask = (1 << self.sum_shift) - 1
        rows = np.arange(1 << self.row_bits)
        tiles = np.stack([rows >> BITS * j & 15 for j in range(size)], axis=1)
        self.reversed_row = (tiles[:, ::-1] << BITS * np.arange(size)).sum(axis=1)
        self.column = (tiles << self.row_bits * np.arange(size)).sum(axis=1)  # a row as the first column of a board
        self.slid = np.array([self._slide(row) for row in tiles.tolist()])
        self.tile_sum = np.where(tiles > 0, 1 << tiles, 0).sum(axis=1)
        self.has_goal = (tiles >= goal).any(axis=1)
        self.keys = self._reachable()
        self.start, self.victory = self.keys.size, self.keys.size + 1
        self.n_states = self.keys.size + 2

    def _slide(self, row: list[int]) -> int:
        kept: list[int] = []
        merged = False
        for tile in filter(None, row):
            if kept and kept[-1] == tile and not merged:
                kept[-1], merged = tile + 1, True
            else:
                kept.append(tile)
                merged = False
        return sum(tile << BITS * j for j, tile in enumerate(kept))

    def _rows(self, boards: IntArray) -> list[IntArray]:
        return [boards >> self.row_bits * i & (1 << self.row_bits) - 1 for i in range(self.size)]

    def _joined(self, rows: list[IntArray]) -> IntArray:
        return sum((row << self.row_bits * i for i, row in enumerate(rows)), np.zeros_like(rows[0]))

    def _transposed(self, boards: IntArray) -> IntArray:
        return sum((self.column[row] << BITS * i for i, row in enumerate(self._rows(boards))), np.zeros_like(boards))

    def _keys(self, boards: IntArray) -> IntArray:
        """Sum of the tiles, then the least of the eight boards that are equal up to reflections."""
        least = boards
        for board in (boards, self._transposed(boards)):
            rows = self._rows(board)
            mirrored = [self.reversed_row[row] for row in rows]
            for lines in (rows, rows[::-1], mirrored, mirrored[::-1]):
                least = np.minimum(least, self._joined(lines))
        return sum((self.tile_sum[row] for row in self._rows(boards)), np.zeros_like(boards)) << self.sum_shift | least

    def moved(self, boards: IntArray) -> IntArray:
        """The boards after each of the four moves, before a tile appears; [n, 4]."""
        after = []
        for board, back in ((boards, lambda b: b), (self._transposed(boards), self._transposed)):
            rows = self._rows(board)
            mirrored = [self.reversed_row[row] for row in rows]
            after.append(back(self._joined([self.slid[row] for row in rows])))
            after.append(back(self._joined([self.reversed_row[self.slid[row]] for row in mirrored])))
        return np.stack(after, axis=1)

    def won(self, boards: IntArray) -> npt.NDArray[np.bool_]:
        """Whether boards have the goal's tile."""
        return np.logical_or.reduce([self.has_goal[row] for row in self._rows(boards)])

    def spawned(self, boards: IntArray) -> tuple[IntArray, npt.NDArray[np.float64], IntArray]:
        """Keys of the boards after a tile has appeared, their probabilities, and how many there are of each board."""
        place = BITS * np.arange(self.cells)
        empty = (boards[:, None] >> place & 15) == 0
        board, cell = np.nonzero(empty)
        keys = self._keys((boards[board, None] | np.array([1, 2]) << place[cell, None]).ravel())
        counts = empty.sum(axis=1)
        return keys, np.tile([TWO, FOUR], board.size) / np.repeat(counts, 2 * counts), 2 * counts

    def _reachable(self) -> IntArray:
        """Keys of all boards that a game may come to, ascending: each sum leads to the next two even ones."""
        found = np.unique(self._start()[0])
        layers = dict(self._by_sum(found))
        done = []
        while layers:
            total = min(layers)
            done.append(layers.pop(total))
            for part in np.array_split(done[-1], -(-done[-1].size // (1 << 16))):
                after = self.moved(part & self.board_mask)
                after = np.unique(after[after != (part & self.board_mask)[:, None]])
                for larger, own in self._by_sum(np.unique(self.spawned(after[~self.won(after)])[0])):
                    layers[larger] = np.union1d(layers.get(larger, own), own)
        return np.concatenate(done)

    def _by_sum(self, keys: IntArray) -> list[tuple[int, IntArray]]:
        totals = keys >> self.sum_shift
        return [(total, keys[totals == total]) for total in np.unique(totals).tolist()]

    def _start(self) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Keys and probabilities of the boards with two tiles with which a game begins."""
        first, once, _ = self.spawned(np.zeros(1, np.int64))
        second, twice, counts = self.spawned(first & self.board_mask)
        return second, np.repeat(once, counts) * twice

    def rows(self, states: IntArray) -> ooc_mdp.StateRows:
        """The rows of any states: an action is one of the moves left, right, up and down that change the board."""
        boards = np.where(states < self.start, self.keys[np.minimum(states, self.start - 1)] & self.board_mask, 0)
        after = self.moved(boards)
        allowed = (after != boards[:, None]) & (states < self.start)[:, None]
        allowed[states == self.start, 0] = True
        state, move = np.nonzero(allowed)
        after = after[state, move]
        begins, won = states[state] == self.start, self.won(after)
        goes_on = ~(begins | won)
        begin, begin_probabilities = self._start()
        keys, probabilities, counts = self.spawned(after[goes_on])

        transitions = np.where(begins, begin.size, 1)
        transitions[goes_on] = counts
        successors = np.full(transitions.sum(), self.victory)
        weights = np.ones(successors.size)
        for chosen, to, with_probability in (
            (goes_on, keys, probabilities),
            (begins, np.tile(begin, begins.sum()), np.tile(begin_probabilities, begins.sum())),
        ):
            where = np.repeat(chosen, transitions)
            successors[where], weights[where] = np.searchsorted(self.keys, to), with_probability
        return ooc_mdp.StateRows(
            successors,
            weights,
            rewards=0.0,
            actions=allowed.sum(axis=1),
            transitions=transitions,
            terminal_rewards=np.where(states == self.victory, 1.0, 0.0),
            action_labels=move,
        )


def main(size: str, tile: str, path: str) -> None:
    """Write the store of a game of so many cells along a side, up to a tile."""
    game = Game(int(size), int(tile).bit_length() - 1)
    print(ooc_mdp.from_rows(game.n_states, game.rows, path=path, note=print))
    print(f"the start is state {game.start}")


if __name__ == "__main__":
    main(*sys.argv[1:])
