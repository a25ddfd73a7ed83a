package view

import "slices"

// layers arranges blocks for the eye: each lies in a layer behind all that it needs,
// and within a layer where few lines cross. needs has the blocks that each needs, by
// index; the same needs always give the same layers. Where blocks need each other in a
// circle, one of these lines is left out of account.
func layers(needs [][]int) [][]int {
	depth := depths(needs)
	out := [][]int{}
	for i, d := range depth {
		for len(out) <= d {
			out = append(out, nil)
		}
		out[d] = append(out[d], i)
	}
	users := make([][]int, len(needs))
	for i, list := range needs {
		for _, j := range list {
			users[j] = append(users[j], i)
		}
	}
	best, fewest := copied(out), crossings(out, needs)
	for range 8 {
		for l := 1; l < len(out); l++ {
			settle(out, l, needs)
		}
		for l := len(out) - 2; l >= 0; l-- {
			settle(out, l, users)
		}
		if n := crossings(out, needs); n < fewest {
			best, fewest = copied(out), n
		}
	}
	return best
}

// depths is the length of the longest way down from each block.
func depths(needs [][]int) []int {
	depth := make([]int, len(needs))
	state := make([]int, len(needs)) // 0 new, 1 under way, 2 done
	type frame struct{ block, next int }
	for start := range needs {
		stack := []frame{}
		if state[start] == 0 {
			state[start] = 1
			stack = append(stack, frame{block: start})
		}
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if top.next == len(needs[top.block]) {
				for _, j := range needs[top.block] {
					if state[j] == 2 {
						depth[top.block] = max(depth[top.block], depth[j]+1)
					}
				}
				state[top.block] = 2
				stack = stack[:len(stack)-1]
				continue
			}
			j := needs[top.block][top.next]
			top.next++
			if state[j] == 0 {
				state[j] = 1
				stack = append(stack, frame{block: j})
			}
		}
	}
	return depth
}

func copied(a [][]int) [][]int {
	out := make([][]int, len(a))
	for i := range a {
		out[i] = slices.Clone(a[i])
	}
	return out
}

// places is where each block stands in its layer, from 0 to 1.
func places(layers [][]int) map[int]float64 {
	at := map[int]float64{}
	for _, layer := range layers {
		for i, b := range layer {
			at[b] = (float64(i) + 0.5) / float64(len(layer))
		}
	}
	return at
}

// settle orders a layer by the middle of what its blocks are joined to.
func settle(layers [][]int, l int, joined [][]int) {
	at := places(layers)
	middle := map[int]float64{}
	for _, b := range layers[l] {
		sum := 0.0
		for _, j := range joined[b] {
			sum += at[j]
		}
		if n := len(joined[b]); n > 0 {
			middle[b] = sum / float64(n)
		} else {
			middle[b] = at[b]
		}
	}
	slices.SortStableFunc(layers[l], func(a, b int) int {
		switch {
		case middle[a] < middle[b]:
			return -1
		case middle[a] > middle[b]:
			return 1
		}
		return 0
	})
}

// crossings counts pairs of lines between the same two layers that cross.
func crossings(layers [][]int, needs [][]int) int {
	layer, place := map[int]int{}, map[int]int{}
	for l, list := range layers {
		for i, b := range list {
			layer[b], place[b] = l, i
		}
	}
	type pair struct{ from, to int }
	lines := map[pair][][2]int{}
	for _, list := range layers { // by place, so that each list of lines is sorted by it
		for _, b := range list {
			to := []int{}
			for _, j := range needs[b] {
				to = append(to, j)
			}
			slices.SortFunc(to, func(a, b int) int { return place[a] - place[b] })
			for _, j := range to {
				p := pair{layer[b], layer[j]}
				lines[p] = append(lines[p], [2]int{place[b], place[j]})
			}
		}
	}
	total := 0
	for _, list := range lines {
		ends := make([]int, len(list))
		for i, x := range list {
			ends[i] = x[1]
		}
		total += inversions(ends)
	}
	return total
}

// inversions counts pairs that stand in the wrong order, by merging.
func inversions(a []int) int {
	if len(a) < 2 {
		return 0
	}
	left, right := slices.Clone(a[:len(a)/2]), slices.Clone(a[len(a)/2:])
	n := inversions(left) + inversions(right)
	i, j := 0, 0
	for k := range a {
		if j == len(right) || i < len(left) && left[i] <= right[j] {
			a[k], i = left[i], i+1
			continue
		}
		a[k], j = right[j], j+1
		n += len(left) - i
	}
	return n
}
