#compdef pinfold
# zsh completion for pinfold: source <(pinfold completion zsh)
_pinfold() {
	local -a found
	local word what
	while IFS=$'\t' read -r word what; do
		found+=("${word//:/\\:}:${what}")
	done < <("${words[1]}" __complete -- "${(@)words[2,$CURRENT]}" 2>/dev/null)
	if (( $#found )); then
		_describe 'pinfold' found
	else
		_files
	fi
}
if [ "$funcstack[1]" = "_pinfold" ]; then
	_pinfold "$@"
else
	compdef _pinfold pinfold
fi
