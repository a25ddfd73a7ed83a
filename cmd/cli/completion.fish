# fish completion for pinfold: pinfold completion fish | source
function __pinfold_complete
	set -l words (commandline -opc)
	set -l found (pinfold __complete -- $words[2..-1] (commandline -ct) 2>/dev/null)
	if test (count $found) -gt 0
		printf '%s\n' $found
	else
		__fish_complete_path (commandline -ct)
	end
end
complete -c pinfold -f -a '(__pinfold_complete)'
